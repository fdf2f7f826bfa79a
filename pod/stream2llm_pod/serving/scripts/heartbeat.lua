-- Write a pod's heartbeat with the server's own time, so that no two machines' clocks are ever compared.
-- KEYS  pods  log  incarnations
-- ARGV  pod  incarnation  heartbeat (a JSON object without time_ms and without its closing brace)  log_live_ms
--       first (1 to register, 0 afterwards)  forgotten_ms
-- Returns the server's time in ms, the heartbeat that stood there before, and whether this one was taken: 0 means that
-- the incarnation is no longer registered, so its streams are others' now.
local time = redis.call('TIME')
local now_ms = string.format('%.0f', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local before = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[5] == '0' and not (before and string.find(before, '"incarnation":"' .. ARGV[2] .. '"', 1, true)) then
  return { now_ms, before or '', 0 }
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3] .. ',"time_ms":' .. now_ms .. '}')
redis.call('SADD', KEYS[3], ARGV[1] .. ':' .. ARGV[2])
-- Where all pods and all routers are gone nobody clears away what one has left that was killed.
redis.call('PEXPIRE', KEYS[1], ARGV[6])
redis.call('PEXPIRE', KEYS[3], ARGV[6])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return { now_ms, before or '', 1 }
