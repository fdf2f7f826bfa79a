-- End a stream for which no pod was found in time.
-- KEYS  lease  route  reply  entries
-- ARGV  epoch  retain_ms  data of the terminal error event
-- FENCED: the lease is another's. Returns 1 if the stream was still held, else 0.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
if redis.call('HGET', KEYS[2], 'state') ~= 'held' then return 0 end
redis.call('XADD', KEYS[3], '*', 'event', 'error', 'data', ARGV[3])
redis.call('HSET', KEYS[2], 'state', 'ended')
redis.call('DEL', KEYS[4])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
redis.call('PEXPIRE', KEYS[3], ARGV[2])
return 1
