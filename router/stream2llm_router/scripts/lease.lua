-- Take or renew the lease of one tenant.
-- KEYS  lease  ingress
-- ARGV  router  lease_ms
-- Returns the epoch, or nil while another router holds the lease. The epoch comes from the server's clock, so it grows
-- with every holder although the key of the last one has expired.
local holder = redis.call('HMGET', KEYS[1], 'router', 'epoch')
if holder[1] and holder[1] ~= ARGV[1] then return nil end
local epoch = holder[2]
if not epoch then
  local time = redis.call('TIME')
  epoch = string.format('%d%06d', tonumber(time[1]), tonumber(time[2]))
  redis.call('HSET', KEYS[1], 'router', ARGV[1], 'epoch', epoch)
  redis.call('PERSIST', KEYS[2]) -- the last holder may have given it an expiry, see `release`
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return epoch
