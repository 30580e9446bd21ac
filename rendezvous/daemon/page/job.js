// SPDX-License-Identifier: Apache-2.0
// The chosen job: its figures, charts, nodes and rounds.

const most_rows = 50;  // of nodes, until all are asked for
const phases = [["rendezvous", "rendezvous"], ["warming", "imports"], ["spawn", "start"],
  ["communicators", "communicators"], ["first_step", "first step"], ["running", "training"], ["redone", "done again"], ["detect", "noticing"], ["stop", "stopping"], ["delay", "crash loop's delay"]];
const parts = [["step", "whole step"], ["forward", "forward"], ["backward", "backward"], ["communication", "communication"],
  ["exposed", "of it not hidden"], ["loader", "waits for data"]];

// Ranks whose loss is no number are no part of the mean. Empty: no rank has told a loss.
function loss_text({ loss, nan_ranks = 0 }) {
  const nan = nan_ranks > 0 ? `NaN on ${count_text(nan_ranks, "rank")}` : "";
  return Number.isFinite(loss) ? number_text(loss) + (nan && `, ${nan}`) : nan;
}

// How much of a budget is used. "1 of 0" would be no share.
const budget_text = (used, most) => most > 0 && used <= most ? `${whole.format(used)} of ${whole.format(most)}`
  : `${whole.format(used)}, ${most > 0 ? whole.format(most) : "none"} allowed`;

class JobView {
  bars = new RankBars();
  machines = new Machines();
  charts = { loss: new LineChart("loss"), samples: new LineChart("samples per second"), step: new LineChart("step time") };
  all_nodes = false;

  constructor(redraw, say) {
    this.output = new Output(say, redraw);
    this.grid = new RankGrid((rank) => this.output.look(rank));
    by_id("times_chart").append(this.bars.element);
    by_id("training_charts").append(...Object.values(this.charts).map((chart) => chart.element));
    by_id("all_nodes").addEventListener("click", () => {
      this.all_nodes = !this.all_nodes;
      redraw();
    });
  }

  draw(model, job) {
    put(by_id("job_name"), job.run_id);
    put(by_id("job_phase"), job.phase);
    put_class(by_id("job_phase"), `badge ${job.phase}`);
    const waits = waits_text(job);
    const hangs = job.hang?.round === job.round;
    put(by_id("waits"), waits || (hangs ? "" : "No hang is known, and no node is waited for."));
    put_class(by_id("waits"), waits ? "waits some" : "waits");
    show(by_id("reason"), Boolean(job.reason));
    put(by_id("reason"), job.reason ?? "");
    put_facts(by_id("numbers"), this.figures(job));
    this.draw_hang(job);
    this.grid.draw(job);
    this.output.draw(job);
    this.draw_times(job);
    this.draw_training(model, job);
    this.machines.draw(model, job);
    this.draw_nodes(job);
    this.draw_rounds(model, job);
  }

  // One that is over: what is known of it is little.
  draw_finished(job) {
    put(by_id("job_name"), job.run_id);
    put(by_id("job_phase"), job.exit_code === 0 ? "succeeded" : "failed");
    put_class(by_id("job_phase"), `badge ${job.exit_code === 0 ? "succeeded" : "failed"}`);
    put(by_id("waits"), [job.summary, job.first_failure].filter(Boolean).join(" · "));
    put_class(by_id("waits"), "waits");
    show(by_id("reason"), Boolean(job.reason));
    put(by_id("reason"), job.reason);
    put_facts(by_id("numbers"), [["exit code", String(job.exit_code)], ["began", job.began ?? "–"], ["ended", job.ended],
      ["rounds", String(job.rounds)], ["failures", String(job.failures)], ["node losses", String(job.node_losses)],
      ["preemptions", String(job.preemptions)], ["nodes", `${job.num_nodes}: ${names_text(job.nodes, 8)}`]]);
    for (const id of ["hang", "ranks", "times", "training", "machines", "nodes", "rounds"]) show(by_id(id), false);
    this.output.draw(null);
  }

  figures(job) {
    const last = job.rounds[job.rounds.length - 1];
    const figures = [["round", String(job.round)],
      ["nodes", `${whole.format(num_here(job))} of ${job.min_nodes === job.max_nodes ? job.max_nodes : `${job.min_nodes}–${job.max_nodes}`}`],
      ["worker failures", budget_text(job.failures, job.max_restarts)], ["node losses", budget_text(job.node_losses, job.max_node_losses)]];
    if (job.phase !== "forming" && last) figures.splice(2, 0, ["ranks", whole.format(last.world_size)]);
    if (job.preemptions > 0) figures.push(["preemptions", budget_text(job.preemptions, job.max_preemptions)]);
    if (job.rounds_without_progress > 0 && job.no_progress_restarts > 0) {
      figures.push(["rounds without a step", budget_text(job.rounds_without_progress, job.no_progress_restarts)]);
    }
    if (job.ettr !== undefined) figures.push(["time in training", percent_text(job.ettr)]);
    if (job.training) {
      figures.push(["step", `${whole.format(job.training.step)} (${job.training.phase})`]);
      if (job.training.framework) figures.push(["framework", job.training.framework]);
      if (job.training.skipped_steps > 0) figures.push(["skipped steps", whole.format(job.training.skipped_steps)]);
      const peak = job.training.gpu_memory_peak;
      if (peak) figures.push(["GPU memory at most", `${bytes_text(peak.bytes)} (rank ${peak.rank})`]);
      const loss = loss_text(job.training);
      if (loss !== "") figures.push(["loss", loss]);
    }
    return figures;
  }

  draw_hang(job) {
    const hang = job.hang?.round === job.round ? job.hang : null;
    show(by_id("hang"), hang !== null);
    if (!hang) return;
    put(by_id("hang_text"), hang.text);
    show(by_id("hang_more"), hang.lines.length > 0);
    put(by_id("hang_lines"), hang.lines.join("\n"));
  }

  draw_times(job) {
    const rows = job.in_order.flatMap((node) => node.step_times ?? []);
    show(by_id("times"), rows.length > 0);
    if (rows.length === 0) return;
    this.bars.draw(rows, new Set(job.stragglers.map(rank_named)), step_seconds(job));
    put_list(by_id("stragglers"), job.stragglers, (text) => rank_named(text), () => make("li", "straggler"),
      (item, text) => put(item, `▲ ${text}`));
  }

  draw_training(model, job) {
    const record = model.records.get(job.run_id);
    const steps = job.training?.step_parts;
    show(by_id("training"), record.of("loss").values.length + record.of("samples").values.length + record.of("step").values.length > 0);
    const marks = record.marks;
    const { loss, nan_ranks } = job.training ?? {};
    this.charts.loss.draw({
      lines: [{ series: record.of("loss") }], text: number_text, marks,
      now: nan_ranks > 0 ? loss_text({ loss, nan_ranks }) : undefined,
    });
    this.charts.samples.draw({ lines: [{ series: record.of("samples") }], text: number_text, marks, top: 0 });
    this.charts.step.draw({
      lines: [{ name: steps ? "mean" : "", series: record.of("step") }, { name: "worst rank", series: record.of("worst") }],
      text: seconds_text, marks, top: 0,
    });
    show(by_id("parts"), Boolean(steps));
    if (!steps) return;
    const lines = parts.map(([key, name]) => [name, ...this.spread(steps[`${key}_seconds`], seconds_text)]);
    if (steps.overlap) lines.push(["communication hidden", ...this.spread(steps.overlap, percent_text)]);
    lines.push(["communicated", bytes_text(steps.bytes_per_step), "", ""]);
    this.put_rows(by_id("parts").tBodies[0], lines, (line) => line[0]);
  }

  spread(spread, text) { return [text(spread.mean), text(spread.worst), String(spread.worst_rank)]; }

  // The first cell is its line's head.
  put_rows(body, lines, key_of) {
    put_list(body, lines, key_of, (line) => {
      const row = make("tr");
      line.forEach((_, index) => row.append(make(index === 0 ? "th" : "td")));
      row.firstChild.scope = "row";
      return row;
    }, (row, line) => line.forEach((text, index) => put(row.children[index], text)));
  }

  draw_nodes(job) {
    show(by_id("nodes"), job.in_order.length > 0);
    const has_order = (node) => node_state(node) === "running";
    let nodes = job.in_order;
    const is_cut = nodes.length > most_rows && !this.all_nodes;
    if (is_cut) nodes = [...nodes.filter((node) => !has_order(node)), ...nodes.filter(has_order)].slice(0, most_rows);
    const has_monitor = job.in_order.some((node) => node.monitor);
    const heads = ["host", "rank", "state", "workers", "address", ...(has_monitor ? ["CPU", "memory", "GPUs", "in", "out"] : [])];
    put_list(by_id("node_heads"), heads, (head) => head, (head) => {
      const cell = make("th", "", head);
      cell.scope = "col";
      return cell;
    }, () => {});
    const seen = new Map();
    const lines = nodes.map((node) => {
      const key = node_key(node);
      seen.set(key, (seen.get(key) ?? 0) + 1);
      return { key: `${has_monitor} ${key} ${seen.get(key)}`, cells: this.node_cells(node, has_monitor) };
    });
    put_list(by_id("node_rows"), lines, (line) => line.key, (line) => {
      const row = make("tr");
      line.cells.forEach((_, index) => row.append(make(index === 0 ? "th" : "td")));
      row.firstChild.scope = "row";
      return row;
    }, (row, line) => {
      line.cells.forEach((text, index) => put(row.children[index], text));
      put_class(row.children[2], `state ${line.cells[2].split(" ")[0]}`);
    });
    const hidden = job.in_order.length - nodes.length;
    show(by_id("node_note"), hidden + job.num_hidden > 0);
    put(by_id("node_note"), `${whole.format(nodes.length)} of ${count_text(job.in_order.length + job.num_hidden, "node")}; those that do not run come first`);
    show(by_id("all_nodes"), job.in_order.length > most_rows);
    put(by_id("all_nodes"), is_cut ? `Show all ${whole.format(job.in_order.length)}` : `Show ${most_rows}`);
    put_list(by_id("excluded"), Object.entries(job.excluded), (each) => each[0], () => make("li"),
      (item, [node, why]) => put(item, `${node} is kept out: ${why}`));
  }

  node_cells(node, has_monitor) {
    const state = node_state(node);
    const cells = [node.host, node.node_rank === undefined ? "–" : String(node.node_rank),
      state === "lost" ? `lost (${node.phase})` : state, String(node.num_workers), node.addr];
    if (!has_monitor) return cells;
    const monitor = node.monitor ?? {};
    const text = (value, show_value) => Number.isFinite(value) ? show_value(value) : "–";
    const uses = (monitor.gpus ?? []).map((gpu) => gpu.use).filter(Number.isFinite);
    return [...cells, text(monitor.cpu, percent_text), text(monitor.memory_used_bytes, bytes_text),
      uses.length > 0 ? percent_text(uses.reduce((a, b) => a + b, 0) / uses.length) : "–",
      text(monitor.received_bytes_per_second, rate_text), text(monitor.sent_bytes_per_second, rate_text)];
  }

  draw_rounds(model, job) {
    show(by_id("rounds"), job.rounds.length > 0);
    const seconds = model.until_now(job.seconds, job.lasting);
    put_list(by_id("spent"), phases.filter(([key]) => seconds[key] > 0), ([key]) => key, ([key]) => {
      const item = make("li");
      item.append(make("span", `sign spent_${key}`), make("span"));
      return item;
    }, (item, [key, name]) => put(item.lastChild, `${name} ${seconds_text(seconds[key])}`));
    // While nodes are waited for, the round that they are to begin isn't there yet.
    const last = job.lasting?.phase === "rendezvous" ? null : job.rounds[job.rounds.length - 1];
    put_list(by_id("round_list"), [...job.rounds].reverse(), (round) => round.round, () => {
      const item = make("li");
      item.append(make("b"), make("span", "note"), make("div", "spent"), make("p"), make("p", "note"));
      item.children[2].setAttribute("aria-hidden", "true");
      return item;
    }, (item, round) => this.draw_round(item, round, job, model.until_now(round.seconds, round === last ? job.lasting : null)));
  }

  draw_round(item, round, job, seconds) {
    const is_live = round.round === job.round && (job.phase === "running" || job.phase === "stopping") && !round.cause;
    put(item.children[0], `Round ${round.round}`);
    const steps = round.last_step > 0 ? `, steps ${whole.format(round.first_step)} to ${whole.format(round.last_step)}` : "";
    put(item.children[1], ` ${count_text(round.nodes, "node")}, ${count_text(round.world_size, "rank")}${round.in_place ? ", in place" : ""}${steps}`);
    const spent = phases.filter(([key]) => seconds[key] > 0);
    const all = spent.reduce((sum, [key]) => sum + seconds[key], 0);
    put_list(item.children[2], spent, (phase) => phase[0], ([key]) => make("span", `spent_${key}`),
      (bar, [key]) => {
        const share = (seconds[key] / all).toFixed(4);
        if (bar.share !== share) bar.style.flexGrow = bar.share = share;
      });
    put(item.children[3], round.cause || (is_live ? "running" : "all workers succeeded"));
    const texts = spent.map(([key, name]) => `${name} ${seconds_text(seconds[key])}`);
    if (round.came.length > 0 && round.round > 1) texts.push(`came: ${names_text(round.came)}`);
    if (round.went.length > 0) texts.push(`went: ${names_text(round.went)}`);
    if (round.steps_redone > 0) texts.push(`${whole.format(round.steps_redone)} steps were done again`);
    if (round.victims.length > 0) texts.push(`failed after it: ${names_text(round.victims, 3)}`);
    put(item.children[4], texts.join(" · "));
  }
}
