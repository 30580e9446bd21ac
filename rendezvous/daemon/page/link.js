// SPDX-License-Identifier: Apache-2.0
// The connection to the daemon. It comes back by itself.

const silence_ms = 15000;  // the daemon says something every 5 s
const first_wait_ms = 500, last_wait_ms = 15000;

class Link {
  wait_ms = first_wait_ms;
  why = "";

  constructor() {
    this.view = new View((text) => this.say(text));
    this.open();
  }

  say(text) {
    if (this.socket?.readyState !== WebSocket.OPEN) return false;
    this.socket.send(text);
    return true;
  }

  open() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/v1/watch`);
    this.socket = socket;
    let is_over = false;
    const over = () => {
      if (is_over) return;
      is_over = true;
      clearTimeout(this.silence);
      socket.close();
      this.lost();
    };
    const heard = () => {
      clearTimeout(this.silence);
      this.silence = setTimeout(over, silence_ms);
    };
    heard();
    socket.onopen = () => this.view.job_view.output.connected();
    socket.onclose = over;
    socket.onmessage = (event) => {
      if (is_over) return;
      heard();
      this.take(JSON.parse(event.data));
    };
  }

  take(message) {
    if (message.type === "end") {
      this.why = message.why;
      this.wait_ms = last_wait_ms;
      this.view.job_view.output.stop();  // an older daemon ends whoever asks
      return;
    }
    this.why = "";
    this.wait_ms = first_wait_ms;
    this.view.say_connection("live", "live");
    this.view.take(message);
  }

  lost() {
    const at = this.view.model.taken_at;
    const shown = at === null ? "nothing to show yet" : `showing state of ${time_text(new Date(at))}`;
    this.view.say_connection(`connection lost – ${shown}${this.why ? ` (${this.why})` : ""}`, "lost");
    setTimeout(() => this.open(), this.wait_ms);
    this.wait_ms = Math.min(this.wait_ms * 2, last_wait_ms);
  }
}

const page_link = new Link();
