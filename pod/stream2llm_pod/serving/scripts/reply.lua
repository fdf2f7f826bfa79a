-- Append a batch of events to one stream's reply, in order, if this writer still holds the stream.
-- KEYS  route  reply  entries  usage  assigned
-- ARGV  attempt  incarnation  open_id  retain_ms  live_ms  maxlen  member (of `assigned`)  prompt_seq
--       { event  data  terminal(0|1)  first_token  tokens }*  [ number ]
--       prompt_seq: number of the last entry that the prompt was made of; kept with the first token
--       first_token is -1 and tokens 0 for everything but token events.
--       number: how many events of this attempt were written before the first one here, as far as the writer knows.
--       It tells a repeat, after an answer that was lost, from news; tokens tell that by themselves, other events do not.
-- Returns the number of events written. GONE: the stream has no route. FENCED: another attempt holds the stream.
-- ENDED: its terminal event is there already; for a retry of that very event this means success.
-- GAP <next>: a token event that does not continue the reply; nothing from it on was written.
local route = redis.call('HMGET', KEYS[1], 'attempt', 'state', 'next_token', 'incarnation', 'open_id', 'bytes',
  'events_attempt', 'events_written')
if not route[2] then return redis.error_reply('GONE') end
if route[1] ~= ARGV[1] or route[5] ~= ARGV[3] then return redis.error_reply('FENCED') end
if route[2] == 'ended' then return redis.error_reply('ENDED') end
if route[4] ~= ARGV[2] then return redis.error_reply('FENCED') end
local retain_ms, live_ms, maxlen = ARGV[4], ARGV[5], ARGV[6]
local next_token, written = tonumber(route[3] or '0'), 0
local number = (#ARGV - 8) % 5 == 1 and tonumber(ARGV[#ARGV]) or nil
local there = route[7] == ARGV[1] and tonumber(route[8]) or 0
for i = 9, #ARGV - 4, 5 do
  local event, data, terminal = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local first, tokens = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4])
  local skip = number and number + (i - 9) / 5 < there
  if first >= 0 and not skip then
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
      if next_token == 0 then redis.call('HSET', KEYS[1], 'prompt_seq', ARGV[8]) end
      next_token = first + tokens
      redis.call('HSET', KEYS[1], 'next_token', next_token)
    end
  end
  if terminal == '1' then
    redis.call('HSET', KEYS[1], 'state', 'ended')
    redis.call('DEL', KEYS[3])
    redis.call('PEXPIRE', KEYS[1], retain_ms)
    redis.call('PEXPIRE', KEYS[2], retain_ms)
    redis.call('HINCRBY', KEYS[4], 'streams', -1)
    redis.call('HINCRBY', KEYS[4], 'bytes', string.format('%.0f', 0 - tonumber(route[6] or '0')))
    redis.call('HDEL', KEYS[5], ARGV[7])
    return written
  end
end
if number then
  local after = math.max(there, number + math.floor((#ARGV - 9) / 5))
  redis.call('HSET', KEYS[1], 'events_attempt', ARGV[1], 'events_written', string.format('%.0f', after))
end
-- A stream in use must not expire, and one that everybody forgot must.
redis.call('PEXPIRE', KEYS[1], live_ms, 'GT')
redis.call('PEXPIRE', KEYS[2], live_ms)
return written
