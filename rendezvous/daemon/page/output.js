// SPDX-License-Identifier: Apache-2.0
// The output of one rank. The daemon is told which one is looked at, and says its last lines as they
// come; while nobody sees the page none is.

const most_name = 4000;  // letters of a job's name that the daemon takes

class Output {
  rank = null;    // { run_id, rank }: looked at
  told = "null";  // the daemon, of it, on this connection
  answer = null;  // { lines, note } of it

  // say(text): false, there is no connection.
  constructor(say, redraw) {
    this.say = say;
    this.redraw = redraw;
    this.field = by_id("output_rank");
    this.lines = by_id("output_lines");
    by_id("output_show").addEventListener("click", () => this.show_field());
    this.field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.show_field();
    });
    by_id("output_stop").addEventListener("click", () => {
      this.stop();
      this.field.focus();
    });
    document.addEventListener("visibilitychange", () => this.tell());
  }

  show_field() {
    const rank = this.field.valueAsNumber;
    if (Number.isInteger(rank) && rank >= 0 && rank < 2 ** 31) this.look(rank);
  }

  look(rank) {
    if (!this.job || rank === undefined || this.job.run_id.length > most_name) return;
    this.rank = { run_id: this.job.run_id, rank };
    this.answer = null;
    this.field.value = rank;
    this.tell();
    this.redraw();
  }

  stop() {
    this.rank = null;
    this.tell();
    this.redraw();
  }

  connected() {
    this.told = "null";
    this.tell();
  }

  tell() {
    const wish = JSON.stringify(document.hidden ? null : this.rank);
    if (wish !== this.told && this.say(`{"tail":${wish}}`)) this.told = wish;
  }

  take(message) {
    if (message.rank !== this.rank?.rank || message.run_id !== this.rank.run_id) return;
    this.answer = message;
  }

  // null: no job that runs is shown.
  draw(job) {
    this.job = job;
    if (this.rank !== null && this.rank.run_id !== job?.run_id) this.stop();
    show(by_id("output"), job !== null && job.round > 0);
    const rank = this.rank?.rank;
    put(by_id("output_title"), rank === undefined ? "Output of a rank" : `Output of rank ${rank}`);
    put(by_id("output_note"), this.note());
    show(by_id("output_stop"), rank !== undefined);
    const text = rank === undefined ? "" : this.answer?.lines.join("\n") ?? "";
    if (this.lines.shown_text === text) return;
    // A reader who has scrolled back stays there. A box that isn't shown yet has no height: it is at its end.
    const is_at_end = this.lines.scrollTop + this.lines.clientHeight >= this.lines.scrollHeight - 4;
    put(this.lines, text);
    show(this.lines, text !== "");
    if (is_at_end) this.lines.scrollTop = this.lines.scrollHeight;
  }

  note() {
    if (this.rank === null) return "";
    if (this.answer === null) return "asking its agent …";
    return this.answer.note || (this.answer.lines.length > 0 ? "its last lines, as they come" : "it has printed nothing yet");
  }
}
