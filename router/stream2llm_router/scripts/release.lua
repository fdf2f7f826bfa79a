-- Give a lease back, so that a standby need not wait for it to lapse.
-- KEYS  lease
-- ARGV  epoch
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
