// A question whose context arrives in pieces, in plain Node.js: no package, RESP over a socket.
//
//   node examples/node/ask.mjs "What is a KV block?" page1.txt page2.txt
//
// Environment: REDIS_HOST (127.0.0.1), REDIS_PORT (6379), POOL (default/default), TENANT (default).
import { randomUUID } from "node:crypto";
import { readFileSync } from "node:fs";
import { connect } from "node:net";

const pool = process.env.POOL ?? "default/default";
const tenant = process.env.TENANT ?? "default";
const socket = connect(Number(process.env.REDIS_PORT ?? 6379), process.env.REDIS_HOST ?? "127.0.0.1");

let received = Buffer.alloc(0);
const waiting = [];

// One RESP value from `received` at `at`: [value, position behind it], or null while it is incomplete.
function parse(at) {
  const end = received.indexOf("\r\n", at);
  if (end < 0) return null;
  const kind = String.fromCharCode(received[at]);
  const head = received.toString("utf8", at + 1, end);
  if (kind === "+" || kind === ":") return [head, end + 2];
  if (kind === "-") return [new Error(head), end + 2];
  const length = Number(head);
  if (length < 0) return [null, end + 2];
  if (kind === "$") {
    const stop = end + 2 + length;
    return received.length < stop + 2 ? null : [received.toString("utf8", end + 2, stop), stop + 2];
  }
  const items = [];
  let position = end + 2;
  for (let i = 0; i < length; i++) {
    const item = parse(position);
    if (item === null) return null;
    items.push(item[0]);
    position = item[1];
  }
  return [items, position];
}

socket.on("data", (data) => {
  received = Buffer.concat([received, data]);
  for (let found = parse(0); found !== null && waiting.length; found = parse(0)) {
    received = received.subarray(found[1]);
    const { resolve, reject } = waiting.shift();
    found[0] instanceof Error ? reject(found[0]) : resolve(found[0]);
    if (!received.length) break;
  }
});
socket.on("error", (error) => {
  console.error(`Redis: ${error.message}`);
  process.exit(1);
});

function redis(...words) {
  const parts = words.map((word) => `$${Buffer.byteLength(word)}\r\n${word}\r\n`);
  socket.write(`*${words.length}\r\n${parts.join("")}`);
  return new Promise((resolve, reject) => waiting.push({ resolve, reject }));
}

const [question, ...pages] = process.argv.slice(2);
if (!question) {
  console.error("usage: ask.mjs QUESTION [PAGE...]");
  process.exit(2);
}
const stream = randomUUID();
const ingress = `s2l:{${pool}}:ingress:${tenant}`;
const reply = `s2l:{${pool}}:reply:${tenant}:${stream}`;
const send = (op, fields = {}) => redis("XADD", ingress, "*", "stream", stream, "op", op, ...Object.entries(fields).flat());

const content = `Answer from the context.\n\n{context}\n\nQuestion: ${question}`;
await send("open", {
  messages: JSON.stringify([{ role: "user", content }]),
  params: JSON.stringify({ max_tokens: 64, temperature: 0 }),
});
for (const [number, page] of pages.entries()) {
  await send("append", { chunk: `page-${number}`, text: readFileSync(page, "utf8") });
}
await send("finish");

for (let last = "0"; ; ) {
  const answer = await redis("XREAD", "BLOCK", "10000", "STREAMS", reply, last);
  if (answer === null) {
    console.error("nothing came back for 10 s");
    process.exit(1);
  }
  for (const [id, fields] of answer[0][1]) {
    last = id;
    const event = fields[fields.indexOf("event") + 1];
    const data = JSON.parse(fields[fields.indexOf("data") + 1]);
    if (event === "token") process.stdout.write(data.text);
    if (event === "error") console.error(`\n${data.code}: ${data.message}`);
    if (event === "done") console.log(`\n(${data.usage.prompt_tokens} prompt tokens, ttft ${data.timings.ttft_ms} ms)`);
    if (event === "done" || (event === "error" && data.terminal)) process.exit(event === "done" ? 0 : 1);
  }
}
