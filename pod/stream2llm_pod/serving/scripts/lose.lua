-- Tell the reader of a stream that Redis has lost it, or part of it: a fail-over, or a restart without its files.
-- KEYS  route  reply  entries  usage  assigned
-- ARGV  attempt  incarnation  open_id  retain_ms  data  member (of `assigned`)
-- Returns 1 if it was told. 0: the stream is in other hands, or has ended.
local route = redis.call('HMGET', KEYS[1], 'attempt', 'state', 'incarnation', 'open_id', 'bytes')
if route[2] then
  if route[2] == 'ended' or route[1] ~= ARGV[1] or route[3] ~= ARGV[2] or route[4] ~= ARGV[3] then return 0 end
  redis.call('HINCRBY', KEYS[4], 'streams', -1)
  redis.call('HINCRBY', KEYS[4], 'bytes', string.format('%.0f', 0 - tonumber(route[5] or '0')))
end
redis.call('XADD', KEYS[2], '*', 'event', 'error', 'data', ARGV[5])
redis.call('HSET', KEYS[1], 'state', 'ended', 'pod', '', 'incarnation', '', 'attempt', ARGV[1], 'open_id', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
redis.call('DEL', KEYS[3])
redis.call('HDEL', KEYS[5], ARGV[6])
return 1
