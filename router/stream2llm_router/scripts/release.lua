-- Give a lease back, so that a standby need not wait for it to lapse.
-- KEYS  lease  ingress
-- ARGV  epoch  forgotten_ms
-- Nobody may come to take it, for the pool may be going: an empty ingress goes too, and what waits in one is kept for
-- as long as its streams could wait. Whoever takes the lease next takes that limit away.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
local waiting = redis.pcall('XLEN', KEYS[2])
if waiting == 0 then
  redis.call('DEL', KEYS[2])
elseif type(waiting) == 'number' then
  redis.call('PEXPIRE', KEYS[2], ARGV[2])
end
return redis.call('DEL', KEYS[1])
