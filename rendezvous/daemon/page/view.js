// SPDX-License-Identifier: Apache-2.0
// The page as a whole: the daemon, the list of jobs, what is said. Draws when there is a frame to
// draw, and not while nobody sees it.

const most_happenings = 100;

class View {
  model = new Model();
  job_view;
  sentences = [];  // newest first: { number, time, text, mood }
  num_sentences = 0;
  num_drawn = 0;
  is_waiting = false;

  // say(text), to the daemon: false, there is no connection.
  constructor(say) {
    this.job_view = new JobView(() => this.draw_soon(), say);
    window.addEventListener("hashchange", () => this.draw_soon());
    document.addEventListener("visibilitychange", () => this.draw_soon());
  }

  take(message) {
    if (message.type === "status") {
      this.model.take_status(message.status);
    } else if (message.type === "too_large") {
      this.model.too_large = message.bytes;
    } else if (message.type === "tail") {
      this.job_view.output.take(message);
    } else {
      const before = { jobs: this.model.jobs, finished: this.model.finished };
      const is_first = this.model.taken_at === null;
      this.model.take(message, Date.now());
      this.say(is_first ? this.first_sentences() : happenings(before, this.model));
    }
    this.draw_soon();
  }

  first_sentences() {
    return [{ text: this.model.jobs.length > 0 ? `${count_text(this.model.jobs.length, "live job")} here` : "no live job here", mood: "" }];
  }

  say(found) {
    if (found.length === 0) return;
    const time = time_text(new Date());
    this.sentences.unshift(...found.reverse().map((each) => ({ ...each, time, number: ++this.num_sentences })));
    this.sentences.length = Math.min(this.sentences.length, most_happenings);
    put(by_id("said"), found.reverse().map((each) => each.text).join(". ").slice(0, 400));
  }

  // state: "live", "quiet" or "lost"
  say_connection(text, state) {
    put(by_id("connection"), text);
    put_class(by_id("connection"), `badge ${state}`);
    put_class(document.body, state === "lost" ? "stale" : "");
  }

  draw_soon() {
    if (this.is_waiting || document.hidden) return;
    this.is_waiting = true;
    requestAnimationFrame(() => {
      this.is_waiting = false;
      this.draw();
    });
  }

  draw() {
    if (this.model.status) this.draw_daemon(this.model.status);
    if (this.model.taken_at === null) return;
    this.draw_jobs();
    put_list(by_id("happenings"), this.sentences, (each) => each.number, (each) => {
      const item = make("li", each.mood);
      item.append(make("time", "", each.time), " ", make("bdi", "", each.text));
      return item;
    }, () => {});
    document.documentElement.dataset.drawn = ++this.num_drawn;
  }

  draw_daemon(status) {
    const facts = [["version", status.version], ["process", `${status.embedded ? "ddprun" : "ddprund"}, ${status.pid}`],
      ["up", seconds_text(status.uptime_seconds)], ["listens on", status.addresses.join(", ")]];
    if (status.role) facts.push(["role", status.role]);
    facts.push(["agents", whole.format(status.agents.joined)]);
    facts.push(["journal", status.journal ? (status.journal.kept ? "kept" : "not kept") : "none"]);
    if (status.tls) facts.push(["TLS", "on"]);
    put_facts(by_id("facts"), facts);
    const troubles = [];
    if (status.journal && !status.journal.kept) {
      troubles.push(`The journal is not kept since ${seconds_text(status.journal.trouble_seconds)}: ${status.journal.trouble}. Decisions wait for it.`);
    }
    if (this.model.too_large > 0) troubles.push(`The state has ${bytes_text(this.model.too_large)}, too much for a page: "ddprunctl jobs" shows it.`);
    show(by_id("trouble"), troubles.length > 0);
    put(by_id("trouble"), troubles.join(" "));
  }

  // The one that the address names, else the first one.
  chosen() {
    const { jobs, finished } = this.model;
    let wanted = null;
    try {
      wanted = location.hash.startsWith("#job=") ? decodeURIComponent(location.hash.slice(5)) : this.last_chosen ?? null;
    } catch { /* no such name */ }
    this.last_chosen = wanted;
    const is_it = (job) => job.run_id === wanted;
    return jobs.findLast(is_it) ?? finished.find(is_it) ?? jobs[0] ?? finished[0] ?? null;
  }

  draw_jobs() {
    const { jobs, finished, hidden_finished, hidden_jobs } = this.model;
    const job = this.chosen();
    show(by_id("no_jobs"), jobs.length === 0 || hidden_jobs > 0);
    const none = finished.length > 0 ? "none is live" : "none yet";
    put(by_id("no_jobs"), hidden_jobs > 0 ? `${count_text(hidden_jobs, "more live job")} not shown: "ddprunctl jobs" has all` : none);
    const keyed = (list) => {
      const seen = new Map();
      return list.map((each) => {
        seen.set(each.run_id, (seen.get(each.run_id) ?? 0) + 1);
        return { job: each, key: `${each.run_id}\n${seen.get(each.run_id)}` };
      });
    };
    put_list(by_id("live"), keyed(jobs), (each) => each.key, (each) => this.make_entry(each.job),
      (item, each) => this.draw_entry(item, each.job, each.job === job, this.live_text(each.job), each.job.phase));
    show(by_id("over"), finished.length > 0);
    put(by_id("over_summary"), `${whole.format(finished.length + hidden_finished)} over`);
    put_list(by_id("finished"), keyed(finished), (each) => each.key, (each) => this.make_entry(each.job),
      (item, each) => this.draw_entry(item, each.job, each.job === job,
        each.job.exit_code === 0 ? `ended well, ${each.job.ended}` : `exit code ${each.job.exit_code}, ${each.job.ended}`,
        each.job.exit_code === 0 ? "succeeded" : "failed"));
    show(by_id("no_job"), job === null);
    show(by_id("job"), job !== null);
    document.title = job ? seen_text(`${job.run_id} ${job.phase} – ddprun`) : "ddprun";
    if (!job) return this.job_view.output.draw(null);
    if (job.in_order) this.job_view.draw(this.model, job);
    else this.job_view.draw_finished(job);
  }

  live_text(job) {
    return `${job.phase} · round ${job.round} · ${whole.format(num_here(job))} of ${job.max_nodes} nodes`;
  }

  make_entry(job) {
    const item = make("li");
    const link = make("a");
    link.href = `#job=${encodeURIComponent(job.run_id)}`;
    link.append(make("bdi", "", job.run_id), make("small"));
    item.append(link);
    return item;
  }

  draw_entry(item, job, is_chosen, text, mood) {
    const link = item.firstChild;
    put(link.lastChild, text);
    put_class(item, mood);
    if (link.getAttribute("aria-current") === (is_chosen ? "true" : null)) return;
    if (is_chosen) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
  }
}
