-- Append a batch of events to one stream's reply, in order, if this writer still holds the stream.
-- KEYS  route  reply  entries
-- ARGV  attempt  retain_ms  live_ms  maxlen  { event  data  terminal(0|1)  first_token  tokens }*
--       first_token is -1 and tokens 0 for everything but token events.
-- Returns the number of events written. FENCED: another attempt holds the stream, or its route is gone.
-- ENDED: its terminal event is there already; for a retry of that very event this means success.
-- GAP <next>: a token event that does not continue the reply; nothing from it on was written.
local route = redis.call('HMGET', KEYS[1], 'attempt', 'state', 'next_token')
if route[1] ~= ARGV[1] then return redis.error_reply('FENCED') end
if route[2] == 'ended' then return redis.error_reply('ENDED') end
local retain_ms, live_ms, maxlen = ARGV[2], ARGV[3], ARGV[4]
local next_token, written = tonumber(route[3] or '0'), 0
for i = 5, #ARGV, 5 do
  local event, data, terminal = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local first, tokens = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local skip = false
  if first >= 0 then
    if first + tokens <= next_token and tokens > 0 then
      skip = true -- a retry whose first try was written
    elseif first ~= next_token then
      return redis.error_reply('GAP ' .. next_token)
    end
  end
  if not skip then
    redis.call('XADD', KEYS[2], 'MAXLEN', '~', maxlen, '*', 'event', event, 'data', data)
    written = written + 1
    if first >= 0 then
      next_token = first + tokens
      redis.call('HSET', KEYS[1], 'next_token', next_token)
    end
  end
  if terminal == '1' then
    redis.call('HSET', KEYS[1], 'state', 'ended')
    redis.call('DEL', KEYS[3])
    redis.call('PEXPIRE', KEYS[1], retain_ms)
    redis.call('PEXPIRE', KEYS[2], retain_ms)
    return written
  end
end
-- A stream in use must not expire, and one that everybody forgot must.
redis.call('PEXPIRE', KEYS[1], live_ms, 'GT')
redis.call('PEXPIRE', KEYS[2], live_ms)
return written
