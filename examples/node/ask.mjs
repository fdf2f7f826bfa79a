// A question whose context arrives in pieces, in plain Node.js 20: no package, Redis' protocol over a socket.
//
//   node examples/node/ask.mjs "What is a KV block?" page1.txt page2.txt
//
// Environment: REDIS_URL (redis://127.0.0.1:6379, or redis://USER@HOST), REDISCLI_AUTH (the password, if there is one),
// POOL (default/default), TENANT (default).
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";

const url = new URL(process.env.REDIS_URL ?? "redis://127.0.0.1:6379");
const fail = (message) => (console.error(message), process.exit(1));
const socket = connect(Number(url.port || 6379), url.hostname);
const waiting = [];
let received = Buffer.alloc(0);

function redis(...words) {
  const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  socket.write(`*${words.length}\r\n${parts.join("")}`);
  return new Promise((resolve, reject) => waiting.push({ resolve, reject }));
}

// The answer that begins at `at`: [value, where the next one begins], or null if it has not come wholly.
function parse(at) {
  const end = received.indexOf("\r\n", at);
  if (end < 0) return null;
  const kind = String.fromCharCode(received[at]);
  const head = received.toString("utf8", at + 1, end);
  if (kind === "-") return [new Error(head), end + 2];
  if (kind === "+" || kind === ":") return [head, end + 2];
  if (Number(head) < 0) return [null, end + 2];
  if (kind === "$") {
    const stop = end + 2 + Number(head);
    return received.length < stop + 2 ? null : [received.toString("utf8", end + 2, stop), stop + 2];
  }
  const items = [];
  let next = end + 2;
  while (items.length < Number(head)) {
    const item = parse(next);
    if (item === null) return null;
    items.push(item[0]);
    next = item[1];
  }
  return [items, next];
}

socket.on("error", (error) => fail(`Redis: ${error.message}`));
socket.on("close", () => fail("Redis: the connection was closed"));
socket.on("data", (data) => {
  received = Buffer.concat([received, data]);
  for (let answer = parse(0); answer !== null; answer = parse(0)) {
    received = received.subarray(answer[1]);
    const { resolve, reject } = waiting.shift();
    answer[0] instanceof Error ? reject(answer[0]) : resolve(answer[0]);
  }
});

const [question, ...pages] = process.argv.slice(2);
if (question === undefined) fail("usage: ask.mjs QUESTION [PAGE...]");
const tenant = process.env.TENANT ?? "default";
const prefix = `s2l:{${process.env.POOL ?? "default/default"}}`;
const stream = randomUUID();
const send = (op, fields = {}) =>
  redis("XADD", `${prefix}:ingress:${tenant}`, "*", "stream", stream, "op", op, ...Object.entries(fields).flat());

const password = decodeURIComponent(url.password) || process.env.REDISCLI_AUTH;
if (password) await redis("AUTH", url.username || "default", password);
await send("open", {
  messages: JSON.stringify([{ role: "user", content: `Answer from the context.\n\n{context}\n\nQuestion: ${question}` }]),
  params: JSON.stringify({ max_tokens: 64, temperature: 0 }),
});
for (const [number, page] of pages.entries()) {
  await send("append", { chunk: `page-${number}`, text: readFileSync(page, "utf8") });
}
await send("finish");

for (let last = "0"; ; ) {
  const answer = await redis("XREAD", "BLOCK", "60000", "STREAMS", `${prefix}:reply:${tenant}:${stream}`, last);
  if (answer === null) fail("no event for 60 s: are a router and a pod running?");
  for (const [id, [, event, , json]] of answer[0][1]) {
    last = id;
    const data = JSON.parse(json);
    if (event === "token") process.stdout.write(data.text);
    if (event === "error") console.error(`${data.code}: ${data.message}`);
    if (event === "error" && data.terminal) process.exit(1);
    if (event === "done") {
      console.log(`\n(${data.usage.prompt_tokens} prompt tokens, ttft ${data.timings.ttft_ms} ms)`);
      process.exit(0);
    }
  }
}
