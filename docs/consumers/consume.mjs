// Prints each entry of a feed as a line of JSON, then waits for more: node consume.mjs https://h/feeds/orders PLACE_FILE
// Ends with 2 if it is called otherwise, 10 if there is no such feed, 12 without a right to it ($SIMPLEFEED_TOKEN), 13 at a gap, 15 if its history changed.
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";

const [feed, place, ...more] = process.argv.slice(2);
const statuses = { 404: 10, 401: 12, 403: 12 }, states = { gap: 13, "history changed": 15 };
const token = process.env.SIMPLEFEED_TOKEN, headers = token ? { Authorization: `Bearer ${token}` } : {};
const end = (code, why) => { console.error(why); process.exit(code); };
if (!place || more.length || !/^https?:/.test(feed) || !URL.canParse(feed)) end(2, "node consume.mjs URL_OF_A_FEED PLACE_FILE");

function keep(id) {
  const file = openSync(place + ".new", "w");
  writeSync(file, id);
  fsyncSync(file);
  closeSync(file);
  renameSync(place + ".new", place); // all of it or nothing, also when the power fails
}

function handle(text) {
  const message = Object.fromEntries(text.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
  if (message.event === "state") end(states[JSON.parse(message.data).state] ?? 1, JSON.parse(message.data).detail);
  if (message.data) writeSync(1, message.data + "\n"); // handle the entry here; it comes again if this fails before the next line
  if (message.id) keep(message.id);
}

let told;
for (;; await new Promise((wake) => setTimeout(wake, 1_000))) {
  const last = existsSync(place) ? readFileSync(place, "utf8") : "";
  try {
    const stream = await fetch(`${feed}/events?${last ? `after=${last}` : "since=oldest"}`, { headers });
    if (statuses[stream.status]) end(statuses[stream.status], `${stream.status} ${stream.statusText}`);
    if (!stream.ok) throw new TypeError(`${stream.status} ${stream.statusText}`);
    let text = "";
    for await (const piece of stream.body.pipeThrough(new TextDecoderStream())) {
      const messages = (text + piece).split("\n\n");
      text = messages.pop();
      messages.forEach(handle);
    }
    told = undefined;
  } catch (error) {
    if (!(error instanceof TypeError)) throw error; // fetch's way to say that the server is away
    const why = error.cause?.message || error.message;
    if (told !== why) console.error(`${feed}: ${told = why}; trying again`);
  }
}
