-- Forget an incarnation that is gone, once nobody is left who was assigned to it.
-- KEYS  gone  assigned  log
-- ARGV  member of `gone`
-- Returns 1 if it is forgotten.
if redis.call('HLEN', KEYS[2]) > 0 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
return redis.call('SREM', KEYS[1], ARGV[1])
