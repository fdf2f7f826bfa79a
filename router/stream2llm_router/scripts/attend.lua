-- Say that this router is there, or that it goes, and learn who else is there.
-- KEYS  routers
-- ARGV  router  lapse_ms  goes (0|1)
-- Returns the routers that have said so within lapse_ms, this one included unless it goes.
local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
if ARGV[3] == '1' then
  redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now_ms))
  redis.call('PEXPIRE', KEYS[1], 10 * tonumber(ARGV[2]))
end
local there, all = {}, redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now_ms - (tonumber(all[i + 1]) or 0) < tonumber(ARGV[2]) then
    there[#there + 1] = all[i]
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
return there
