// What HTML cannot do: rows that come as they are published, and a part of a plot that is chosen with the pointer. Every
// page works without it.
"use strict";
(() => {
  const list = document.querySelector("ol.entries[data-events]");
  const button = document.getElementById("live");
  if (!list || !button || !window.EventSource) return;
  const ROWS_MAX = 500;
  const status = document.getElementById("live-status");
  let source = null, last = list.dataset.after, waiting = [], is_planned = false, count = 0;

  const row = (event) => {
    const item = document.createElement("li");
    item.className = "new";
    const at = document.createElement("span");
    at.className = "at";
    at.textContent = event.position;
    const title = document.createElement("span");
    title.className = "title";
    const link = document.createElement("a");
    // Behind a restoration, positions have an epoch, as documents have.
    const epoch = /[0-9](-[0-9]+)?\.atom$/.exec(event.document || "");
    link.href = list.dataset.entry + event.position + ((epoch && epoch[1]) || "");
    link.textContent = event.title || event.id;
    title.append(link);
    const time = document.createElement("time");
    time.dateTime = event.updated || "";
    time.textContent = (event.updated || "").replace("T", " ").replace(/\..*|Z$/, "");
    item.append(at, title, time);
    return item;
  };
  const show = () => {
    is_planned = false;
    if (!source) return;
    // Of a thousand a second, only those that stay are drawn.
    const events = waiting.slice(-ROWS_MAX).reverse();
    waiting = [];
    list.prepend(...events.map(row));
    while (list.children.length > ROWS_MAX) list.lastElementChild.remove();
    status.textContent = `live: ${count} new`;
  };
  const stop = (text) => {
    source.close();
    source = null;
    button.textContent = "Follow live";
    status.textContent = text;
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    if (source) return stop(`stopped after ${count} new`);
    const place = last ? `?after=${encodeURIComponent(last)}` : "?since=oldest";
    source = new EventSource(list.dataset.events + place);
    button.textContent = "Stop";
    status.textContent = "live";
    source.onmessage = (message) => {
      last = message.lastEventId;
      if (!message.data) return;
      count += 1;
      waiting.push(JSON.parse(message.data));
      if (waiting.length > 2 * ROWS_MAX) waiting = waiting.slice(-ROWS_MAX);
      if (!is_planned) {
        is_planned = true;
        requestAnimationFrame(show);
      }
    };
    // The server says that the place is of another history: what is shown is of no use.
    source.addEventListener("state", (message) => stop(`${JSON.parse(message.data).detail}; load this page again`));
    source.onerror = () => {
      if (source.readyState === EventSource.CLOSED) return stop("the stream has ended; load this page again");
      status.textContent = "the server is away; the browser asks again";
    };
    source.onopen = () => { status.textContent = `live: ${count} new`; };
  });
})();
(() => {
  const plot = document.querySelector("svg[data-plot]");
  if (!plot) return;
  const CLICK_PIXELS = 6;
  const bars = [...plot.querySelectorAll(".bar")];
  let begin = null, chosen = [];
  // Bars are a unit wide.
  const at = (event) => {
    const box = plot.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * plot.viewBox.baseVal.width;
  };
  const choose = (event) => {
    const is_drag = begin && Math.abs(event.clientX - begin.clientX) > CLICK_PIXELS;
    const [low, high] = is_drag ? [at(begin), at(event)].sort((a, b) => a - b) : [0, -1];
    chosen = bars.filter((bar) => +bar.getAttribute("x") + 1 > low && +bar.getAttribute("x") < high);
    for (const bar of bars) bar.previousElementSibling.classList.toggle("chosen", chosen.includes(bar));
  };
  plot.addEventListener("dragstart", (event) => event.preventDefault());
  plot.addEventListener("pointerdown", (event) => {
    if (event.button === 0) begin = event;
  });
  // A touch that scrolls the page draws nothing.
  addEventListener("pointercancel", () => {
    begin = null;
    for (const bar of bars) bar.previousElementSibling.classList.remove("chosen");
  });
  addEventListener("pointermove", (event) => { if (begin) choose(event); });
  addEventListener("pointerup", (event) => {
    if (!begin) return;
    choose(event);
    begin = null;
    if (!chosen.length) return;
    // Behind a drag comes a click, which would follow the link of a bar.
    addEventListener("click", (click) => click.preventDefault(), { capture: true, once: true });
    const [first, last] = [chosen[0], chosen[chosen.length - 1]].map((bar) => bar.dataset.span);
    location.assign(`${plot.dataset.plot}?in=${first}..${last}`);
  });
})();
