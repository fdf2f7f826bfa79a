-- Declare one incarnation of a pod gone, once and for all routers: it is silent, or its pod has started anew.
-- KEYS  pods  incarnations  gone  assigned
-- ARGV  prefix  pod  incarnation  lapse_ms  forgotten_ms
-- Returns the number of streams that it had, or nil if it is there after all or was declared gone before.
--
-- Of its streams those are blamed that have failed most often before: whatever ends pods is among them, and streams
-- that were merely beside it do not run out of attempts.
local member = ARGV[2] .. ':' .. ARGV[3]
if redis.call('SISMEMBER', KEYS[2], member) == 0 then return nil end
local raw = redis.call('HGET', KEYS[1], ARGV[2])
local readable, beat = pcall(cjson.decode, raw)
if readable and type(beat) == 'table' and beat.incarnation == ARGV[3] then
  local time = redis.call('TIME')
  local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
  if now_ms - (tonumber(beat.time_ms) or 0) < tonumber(ARGV[4]) then return nil end
  redis.call('HDEL', KEYS[1], ARGV[2])
end
redis.call('SMOVE', KEYS[2], KEYS[3], member)
redis.call('PEXPIRE', KEYS[3], ARGV[5])
local streams = redis.call('HKEYS', KEYS[4])
local most, failures = 0, {}
for i, stream in ipairs(streams) do
  local found = redis.pcall('HGET', ARGV[1] .. ':route:' .. stream, 'failures')
  failures[i] = type(found) == 'string' and tonumber(found) or 0
  if failures[i] > most then most = failures[i] end
end
for i, stream in ipairs(streams) do
  local key = ARGV[1] .. ':route:' .. stream
  -- A route that has gone must not come back with nothing but a count.
  if failures[i] == most and redis.call('EXISTS', key) == 1 then redis.pcall('HINCRBY', key, 'failures', 1) end
end
return #streams
