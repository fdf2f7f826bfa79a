-- Write a pod's heartbeat with the server's own time, so that no two machines' clocks are ever compared.
-- KEYS  pods  log
-- ARGV  pod  heartbeat (a JSON object without time_ms and without its closing brace)  log_live_ms
-- Returns the server's time in ms and the heartbeat that stood there before.
local time = redis.call('TIME')
local now_ms = string.format('%d', tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000))
local before = redis.call('HGET', KEYS[1], ARGV[1])
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ',"time_ms":' .. now_ms .. '}')
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return { now_ms, before }
