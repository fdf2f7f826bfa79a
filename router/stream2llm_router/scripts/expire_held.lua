-- End the streams of one tenant for which no pod had room in time, the longest waiting first.
-- KEYS  lease  held
-- ARGV  epoch  prefix  tenant  open_wait_ms  retain_ms  limit  error (JSON data of the terminal event)
-- Returns the number of streams ended. FENCED: this router does not hold the lease.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local prefix, tenant, retain_ms = ARGV[2], ARGV[3], ARGV[5]
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local since = string.format('%.0f', now_ms - tonumber(ARGV[4]))
local ended = 0
for _, stream in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', since, 'LIMIT', 0, ARGV[6])) do
  local route_key = prefix .. ':route:' .. tenant .. ':' .. stream
  local reply_key = prefix .. ':reply:' .. tenant .. ':' .. stream
  local route = redis.pcall('HMGET', route_key, 'state', 'attempt')
  if not route.err and route[1] and route[1] ~= 'ended' and route[2] == '0' then
    local written = redis.pcall('XADD', reply_key, '*', 'event', 'error', 'data', ARGV[7])
    if type(written) == 'table' and written.err and not string.find(written.err, 'WRONGTYPE', 1, true) then
      return redis.error_reply(written.err)
    end
    redis.call('PEXPIRE', reply_key, retain_ms)
    redis.call('HSET', route_key, 'state', 'ended')
    redis.call('PEXPIRE', route_key, retain_ms)
    redis.call('DEL', prefix .. ':entries:' .. tenant .. ':' .. stream)
    ended = ended + 1
  end
  redis.call('ZREM', KEYS[2], stream)
end
return ended
