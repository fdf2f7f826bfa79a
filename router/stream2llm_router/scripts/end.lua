-- End a stream from the router's side, with a terminal event.
-- KEYS  lease  route  reply  entries  held  usage
-- ARGV  epoch  prefix  tenant  stream  attempt  retain_ms  event  data
--   attempt   that the stream has now, as the router saw it
-- Returns 1. FENCED: this router does not hold the lease. STALE: another attempt has been made. ENDED: it has ended.
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return redis.error_reply('FENCED') end
local prefix, member, retain_ms = ARGV[2], ARGV[3] .. ':' .. ARGV[4], ARGV[6]
local route = redis.call('HMGET', KEYS[2], 'state', 'attempt', 'pod', 'incarnation', 'bytes')
if not route[1] or route[1] == 'ended' then
  redis.call('ZREM', KEYS[5], ARGV[4])
  return redis.error_reply('ENDED')
end
if route[2] ~= ARGV[5] then return redis.error_reply('STALE') end
local written = redis.pcall('XADD', KEYS[3], '*', 'event', ARGV[7], 'data', ARGV[8])
-- A foreign key in the reply's place is an operator's accident; memory that is short is no reason to be silent.
if type(written) == 'table' and written.err and not string.find(written.err, 'WRONGTYPE', 1, true) then
  return redis.error_reply(written.err)
end
redis.call('PEXPIRE', KEYS[3], retain_ms)
redis.call('HSET', KEYS[2], 'state', 'ended', 'attempt', tonumber(route[2]) + 1)
redis.call('PEXPIRE', KEYS[2], retain_ms)
redis.call('DEL', KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[4])
redis.call('HINCRBY', KEYS[6], 'streams', -1)
redis.call('HINCRBY', KEYS[6], 'bytes', string.format('%.0f', 0 - tonumber(route[5] or '0')))
if route[3] and route[3] ~= '' then redis.call('HDEL', prefix .. ':assigned:' .. route[3] .. ':' .. route[4], member) end
return 1
