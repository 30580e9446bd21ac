// SPDX-License-Identifier: Apache-2.0
// The state that the daemon sent last, and the past that this page remembers. No elements.

const most_points = 600;

// Values over time. When it is full, every second point of its older half goes: the first point
// stays.
class Series {
  times = [];
  values = [];
  add(time, value) {
    if (!Number.isFinite(value)) return;
    if (this.times.length >= most_points) {
      const is_kept = (_, index) => index >= most_points / 2 || index % 2 === 0;
      this.times = this.times.filter(is_kept);
      this.values = this.values.filter(is_kept);
    }
    this.times.push(time);
    this.values.push(value);
  }
  get last() { return this.values[this.values.length - 1]; }
}

// Series by name, of a job or of a machine.
class Record {
  series = new Map();
  marks = [];  // when rounds began
  of(name) {
    if (!this.series.has(name)) this.series.set(name, new Series());
    return this.series.get(name);
  }
}

const node_name = (node) => node.node_rank === undefined ? node.host : `node ${node.node_rank} (${node.host})`;
const node_key = (node) => `${node.node_rank ?? "-"} ${node.host} ${node.addr}`;

// Its nodes in the order of their ranks, spares behind, each with its first global rank. That is a
// sum of numbers of workers, known unless some of the nodes are not here.
function nodes_in_order(job, num_hidden) {
  const nodes = [...job.nodes].sort((a, b) => (a.node_rank ?? Infinity) - (b.node_rank ?? Infinity) || 0);
  let next = 0;
  for (const node of nodes) {
    node.first_rank = undefined;
    if (node.node_rank === undefined || num_hidden > 0) continue;
    node.first_rank = next;
    next += node.num_workers;
  }
  return nodes;
}

function node_state(node) {
  if (!node.connected) return "lost";
  return node.node_rank === undefined && node.phase === "idle" ? "spare" : node.phase;
}

// The nodes that are here. While a round forms none has a rank.
const num_here = (job) => job.num_hidden +
  job.nodes.filter((node) => job.phase === "forming" ? node.connected : node.node_rank !== undefined).length;

// A step's time in seconds, the only one on the page: the mean that programs tell, else the median that agents measured.
function step_seconds(job) {
  const measured = job.in_order.flatMap((node) => node.step_times ?? []).map((row) => row[1] / 1e6).sort((a, b) => a - b);
  return job.training?.step_parts?.step_seconds.mean ?? measured[measured.length >> 1];
}

// Ranks that a text of the daemon is about: "rank 3 (node 1, …) …".
const rank_named = (text) => Number(/^rank (\d+) /.exec(text ?? "")?.[1] ?? -1);

// One sentence about the nodes that are waited for; empty: none is.
function waits_text(job) {
  const of_state = (...states) => job.in_order.filter((node) => states.includes(node_state(node))).map(node_name);
  const texts = [];
  if (job.phase === "forming") {
    const here = num_here(job);
    const missing = job.min_nodes - here;
    if (missing > 0) texts.push(`waits for ${count_text(missing, "more node")}: ${here} of ${job.min_nodes} are here`);
    else if (here < job.max_nodes) texts.push(`enough nodes are here, up to ${job.max_nodes - here} more are waited for a moment`);
    else texts.push("its next round is about to begin");
  } else if (job.phase === "running") {
    const starting = of_state("starting");
    if (starting.length > 0) texts.push(`waits for workers to start on ${names_text(starting)}`);
    const done = of_state("succeeded").length;
    const running = of_state("running");
    if (done > 0 && running.length > 0) {
      texts.push(`${count_text(done, "node")} finished; waits for ${names_text(running)}`);
    }
    if (job.preempting) texts.push(`is about to end its round: ${job.preempting}`);
  } else if (job.phase === "stopping") {
    const stopping = of_state("stopping");
    texts.push(stopping.length > 0 ? `waits for workers to stop on ${names_text(stopping)}` : "is being stopped");
  } else if (job.phase === "ended") {
    texts.push("has ended; waits for its nodes to confirm it");
  }
  const lost = of_state("lost");
  if (lost.length > 0) texts.push(`no connection to ${names_text(lost)}`);
  return texts.join("; ");
}

class Model {
  status = null;
  jobs = [];
  finished = [];
  hidden_finished = 0;
  hidden_jobs = 0;     // live ones that are not among `jobs`
  too_large = 0;       // bytes of the state that was not sent
  taken_at = null;     // when this page got its state
  taken_uptime = 0;    // the daemon's, of that state
  records = new Map();   // run id → Record
  machines = new Map();  // node_key() → Record
  sum = new Map();       // run id → Record, of all of its machines

  take_status(status) { this.status = status; }

  // A state, at `time` in milliseconds.
  take(message, time) {
    this.status = message.status;
    this.too_large = 0;
    this.taken_at = time;
    this.taken_uptime = message.status.uptime_seconds;
    this.jobs = message.jobs.jobs;
    this.finished = [...message.jobs.finished].reverse();
    this.hidden_finished = message.hidden_finished;
    this.hidden_jobs = message.hidden_jobs ?? 0;
    this.jobs.forEach((job, index) => {
      job.num_hidden = message.hidden_nodes[index] ?? 0;
      job.in_order = nodes_in_order(job, job.num_hidden);
      this.remember(job, time);
    });
    const live = new Set(this.jobs.map((job) => job.run_id));
    for (const map of [this.records, this.sum]) {
      for (const id of map.keys()) if (!live.has(id)) map.delete(id);
    }
    const seen = new Set(this.jobs.flatMap((job) => job.in_order.filter((node) => node.monitor).map(node_key)));
    for (const key of this.machines.keys()) if (!seen.has(key)) this.machines.delete(key);
  }

  // Adds the phase that lasts to `seconds` of phases; it lasts until the daemon's last frame.
  until_now(seconds, lasting) {
    if (!lasting) return seconds;
    const more = lasting.seconds + this.status.uptime_seconds - this.taken_uptime;
    return { ...seconds, [lasting.phase]: seconds[lasting.phase] + more };
  }

  record(map, key) {
    if (!map.has(key)) map.set(key, new Record());
    return map.get(key);
  }

  remember(job, time) {
    const record = this.record(this.records, job.run_id);
    if (record.round !== undefined && job.round > record.round) record.marks.push(time);
    record.marks.splice(0, record.marks.length - 100);
    record.round = job.round;
    const training = job.training;
    if (training) {
      record.of("loss").add(time, training.loss ?? NaN);
      record.of("samples").add(time, training.samples_per_second ?? NaN);
      record.of("step").add(time, step_seconds(job));
      record.of("worst").add(time, training.step_parts?.step_seconds.worst ?? NaN);
    }
    const sum = { received: 0, sent: 0, use: 0, gpus: 0 };
    let monitored = 0;
    for (const node of job.in_order) {
      if (!node.monitor) continue;
      ++monitored;
      this.remember_machine(this.record(this.machines, node_key(node)), node.monitor, time, sum);
    }
    if (monitored === 0) return;
    const all = this.record(this.sum, job.run_id);
    all.of("received").add(time, sum.received);
    all.of("sent").add(time, sum.sent);
    if (sum.gpus > 0) all.of("gpu").add(time, sum.use / sum.gpus);
  }

  remember_machine(record, monitor, time, sum) {
    record.of("received").add(time, monitor.received_bytes_per_second);
    record.of("sent").add(time, monitor.sent_bytes_per_second);
    sum.received += monitor.received_bytes_per_second || 0;
    sum.sent += monitor.sent_bytes_per_second || 0;
    record.of("cpu").add(time, monitor.cpu);
    const uses = (monitor.gpus ?? []).map((gpu) => gpu.use).filter(Number.isFinite);
    if (uses.length === 0) return;
    const total = uses.reduce((so_far, use) => so_far + use, 0);
    record.of("gpu").add(time, total / uses.length);
    record.of("least_gpu").add(time, Math.min(...uses));
    sum.use += total;
    sum.gpus += uses.length;
  }
}
