// One event stream for all tabs of this browser: over HTTP/1.1 a browser opens six connections to a server, and no more.
// It runs as a SharedWorker and, in browsers without one, in the page itself (see live.js): `liveStream` is the same in both.
// What a stream says stands in docs/live.md.
"use strict";
(() => {
  const SILENT_MS = 12000; // the server says something every 10 s
  const DEAD_MS = 25000;
  const REMEMBERED = 300; // hints that a page which joins later may have missed while it was being made

  function liveStream() {
    const ports = new Set();
    let state = "begins"; // live, lost, signed-out
    let last = 0; // the last event's number
    let who = null; // the user that the stream is for
    let heardAt = 0;
    let wait = 1000;
    let timer = 0;
    let stopping = null;
    let remembered = []; // [number, topics] of late hints
    let rememberedFrom = 0; // everything after this number is among them

    const tell = (message) => {
      for (const port of ports) port.postMessage(message);
    };
    const say = (now) => {
      if (now === state) return;
      state = now;
      tell({ state });
    };

    function take({ event, data, id }) {
      heardAt = Date.now();
      if (id) last = Math.max(last, Number(id));
      if (event === "message") {
        const topics = JSON.parse(data);
        if (id) remembered.push([Number(id), topics]);
        while (remembered.length > REMEMBERED) rememberedFrom = remembered.shift()[0];
        tell({ topics });
      } else if (event === "reset") {
        last = Number(id);
        remembered = [];
        rememberedFrom = last;
        tell({ isReset: true });
      } else if (event === "bye") {
        const isExpired = data === "expired";
        stop();
        say("signed-out");
        tell({ bye: data, isExpired });
        return false;
      } else {
        tell({ isBeat: true });
      }
      say("live");
      return true;
    }

    async function read(answer) {
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        rest += value;
        const blocks = rest.split("\n\n");
        rest = blocks.pop();
        for (const block of blocks) {
          const message = { event: "message", data: "", id: "" };
          for (const line of block.split("\n")) {
            const colon = line.indexOf(":");
            if (colon > 0) message[line.slice(0, colon)] = line.slice(colon + 1).trim();
          }
          if (!take(message)) return;
        }
      }
    }

    async function open() {
      clearTimeout(timer);
      stopping?.abort();
      const mine = (stopping = new AbortController());
      let again = 0;
      heardAt = Date.now();
      try {
        const answer = await fetch(`/_stream?after=${last}`, { signal: mine.signal, cache: "no-store" });
        if (answer.status === 401) {
          if (mine === stopping) say("signed-out");
          again = 30000; // who signs in again in another tab is heard of there; this is for a tab that stays
        } else if (answer.ok) {
          rememberedFrom = rememberedFrom || last;
          wait = 1000;
          await read(answer);
        } else {
          again = 1000 * Number(answer.headers.get("Retry-After") ?? 0);
        }
      } catch {
        // no network, or no server
      }
      if (mine !== stopping) return; // stopped, or opened anew
      stopping = null;
      if (state === "signed-out") {
        if (again) timer = setTimeout(open, again);
        return;
      }
      say("lost");
      timer = setTimeout(open, Math.max(again, wait) * (0.5 + Math.random()));
      wait = Math.min(wait * 2, 30000);
    }

    function stop() {
      clearTimeout(timer);
      const was = stopping;
      stopping = null;
      was?.abort();
    }

    setInterval(() => {
      const silent = Date.now() - heardAt;
      if (!stopping || state === "signed-out") return;
      if (silent > DEAD_MS) open();
      else if (silent > SILENT_MS) say("lost");
    }, 2000);

    // A page begins: it was made when the log was at `after` (0: nobody knows), for the user `person`.
    function join(port, { after, person }) {
      ports.add(port);
      const isAnother = person !== who;
      if (isAnother) {
        who = person;
        stop();
        last = after;
        remembered = [];
        rememberedFrom = after;
        state = "begins";
      }
      port.postMessage({ state });
      if (!stopping || state === "signed-out") {
        if (!isAnother) state = state === "signed-out" ? "begins" : state;
        open();
      }
      if (isAnother) return; // the stream itself begins there, or with a reset
      if (!after || after < rememberedFrom) port.postMessage({ isReset: true });
      for (const [number, topics] of remembered) if (number > after) port.postMessage({ topics });
    }

    return {
      connect(port) {
        port.onmessage = ({ data }) => {
          if (data.joins) join(port, data.joins);
          if (!data.leaves) return;
          ports.delete(port);
          if (ports.size) return;
          stop();
          state = "begins"; // whoever comes next is told so until there is a stream again
        };
      },
    };
  }

  if ("onconnect" in self) {
    const stream = liveStream();
    self.onconnect = ({ ports: [port] }) => stream.connect(port);
  } else {
    self.liveStream = liveStream;
  }
})();
