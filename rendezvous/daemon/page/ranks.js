// SPDX-License-Identifier: Apache-2.0
// The grid of ranks: a cell for each, in its node's group. One stop of the keyboard.

const most_cells = 2048;  // of more ranks each node is one cell

// state → [sign in the cell, what it says]
const rank_states = {
  running: ["", "running"],
  starting: ["▸", "starting"],
  succeeded: ["✓", "finished"],
  stopping: ["■", "being stopped"],
  idle: ["○", "waiting"],
  spare: ["○", "spare"],
  lost: ["!", "without a connection"],
  failed: ["✕", "failed"],
  slow: ["▲", "straggling"],
};

class RankGrid {
  cells = [];  // { element, node, rank, local, state }
  groups = [];
  active = 0;
  job = null;

  // look(rank): that one is to be looked at.
  constructor(look) {
    this.look = look;
    this.grid = by_id("grid");
    this.grid.addEventListener("keydown", (event) => this.pressed(event));
    this.grid.addEventListener("focus", () => this.point_at(this.active));
    this.grid.addEventListener("click", (event) => this.hit(event, (index) => {
      this.point_at(index);
      this.pick();
    }));
    this.grid.addEventListener("pointerover", (event) => this.hit(event, (index) => this.describe(index)));
    this.grid.addEventListener("pointerleave", () => this.describe(this.active));
  }

  hit(event, act) {
    const index = event.target.closest?.(".cell")?.index;
    if (index !== undefined) act(index);
  }

  draw(job) {
    this.job = job;
    const num_ranks = job.in_order.reduce((sum, node) => sum + node.num_workers, 0);
    show(by_id("ranks"), num_ranks > 0);
    const by_node = num_ranks > most_cells;
    const shape = `${job.run_id}\n${by_node}\n` +
      job.in_order.map((node) => `${node_key(node)} ${node.first_rank} ${node.num_workers}`).join("\n");
    if (shape !== this.shape) {
      this.shape = shape;
      this.by_node = by_node;
      this.build(job, by_node);
    }
    this.update(job);
    this.describe(this.active);
  }

  build(job, by_node) {
    const all = document.createDocumentFragment();
    this.cells = [];
    this.groups = [];
    for (const node of job.in_order) {
      const group = make("div", "group");
      group.setAttribute("role", "group");
      if (job.in_order.length <= 64 && !by_node) {
        const name = make("bdi", "group_name", node_name(node));
        name.setAttribute("aria-hidden", "true");
        put_class(group, "group named");
        group.append(name);
      } else {
        group.title = seen_text(node_name(node));
      }
      group.setAttribute("aria-label", seen_text(node_name(node)));
      this.groups.push(this.cells.length);
      for (let local = 0; local < this.cells_of(node); ++local) {
        const element = make("span", "cell");
        element.setAttribute("role", "option");
        element.index = this.cells.length;
        element.id = `cell_${element.index}`;
        const rank = by_node || node.first_rank === undefined ? undefined : node.first_rank + local;
        this.cells.push({ element, rank, local, by_node });
        group.append(element);
      }
      all.append(group);
    }
    this.grid.replaceChildren(all);
    this.active = Math.min(this.active, Math.max(this.cells.length - 1, 0));
    this.point_at(this.active);
  }

  cells_of(node) { return this.by_node ? 1 : node.num_workers; }

  update(job) {
    const slow = new Set(job.stragglers.map(rank_named));
    const last = job.rounds[job.rounds.length - 1];
    const failed = job.phase === "stopping" || job.phase === "ended" ? rank_named(last?.first_failure) : -1;
    const counts = new Map();
    let index = 0;
    for (const node of job.in_order) {
      const times = new Map((node.step_times ?? []).map((row) => [row[0], row]));
      for (let local = 0; local < this.cells_of(node); ++local, ++index) {
        const cell = this.cells[index];
        cell.node = node;
        cell.times = times.get(cell.rank);
        const state = this.state_of(cell, node, slow, failed);
        counts.set(state, (counts.get(state) ?? 0) + (cell.by_node ? node.num_workers : 1));
        if (cell.state === state) continue;
        cell.state = state;
        put(cell.element, rank_states[state]?.[0] ?? "?");
        put_class(cell.element, `cell ${state}`);
        put_attribute(cell.element, "aria-label", seen_text(`${this.name(cell)}: ${rank_states[state]?.[1] ?? state}`));
      }
    }
    this.tell(job, counts);
  }

  state_of(cell, node, slow, failed) {
    if (cell.by_node) {
      for (const rank of slow) {
        if (rank >= node.first_rank && rank < node.first_rank + node.num_workers) return "slow";
      }
      return node_state(node);
    }
    if (cell.rank === undefined) return node_state(node);
    if (cell.rank === failed) return "failed";
    const state = node_state(node);
    return state === "running" && slow.has(cell.rank) ? "slow" : state;
  }

  name(cell) {
    if (cell.by_node) return `${node_name(cell.node)}, ${count_text(cell.node.num_workers, "rank")}`;
    return cell.rank === undefined ? `worker ${cell.local} of ${node_name(cell.node)}` : `rank ${cell.rank}`;
  }

  tell(job, counts) {
    const texts = [...counts].sort((a, b) => b[1] - a[1]).map(([state, count]) => `${whole.format(count)} ${rank_states[state]?.[1] ?? state}`);
    const hidden = job.num_hidden > 0 ? `; ${count_text(job.num_hidden, "more node")} not shown` : "";
    put(by_id("ranks_summary"), `${texts.join(", ")}${this.cells[0]?.by_node ? "; each cell is a node" : ""}${hidden}`);
    put_list(by_id("legend"), [...counts.keys()].sort(), (state) => state, (state) => {
      const item = make("li");
      const sign = make("span", `cell ${state}`, rank_states[state]?.[0] ?? "?");
      sign.setAttribute("aria-hidden", "true");
      item.append(sign, ` ${rank_states[state]?.[1] ?? state}`);
      return item;
    }, () => {});
  }

  point_at(index) {
    const cell = this.cells[index];
    if (!cell) return this.grid.removeAttribute("aria-activedescendant");
    const before = this.cells[this.active]?.element;
    before?.removeAttribute("aria-selected");
    this.active = index;
    cell.element.setAttribute("aria-selected", "true");
    put_attribute(this.grid, "aria-activedescendant", cell.element.id);
    if (this.grid === document.activeElement) cell.element.scrollIntoView({ block: "nearest" });
    this.describe(index);
  }

  describe(index) {
    const cell = this.cells[index];
    if (!cell?.node) return put(by_id("rank_detail"), "");
    const node = cell.node;
    const texts = [this.name(cell), rank_states[cell.state]?.[1] ?? cell.state];
    if (!cell.by_node) texts.push(`on ${node_name(node)}, ${node.addr}`);
    if (cell.times) texts.push(`of a step ${seconds_text(cell.times[2] / 1e6)} is its own part`);
    put(by_id("rank_detail"), texts.join(" · "));
  }

  pick() {
    const cell = this.cells[this.active];
    this.look(cell.by_node ? cell.node.first_rank : cell.rank);
  }

  pressed(event) {
    if (event.altKey || event.ctrlKey || event.metaKey || this.cells.length === 0) return;
    const group = this.groups.findLastIndex((first) => first <= this.active);
    const of_group = (number) => {
      const first = this.groups[number], next = this.groups[number + 1] ?? this.cells.length;
      return first === undefined ? this.active : Math.min(first + this.active - this.groups[group], next - 1);
    };
    const goals = {
      ArrowRight: () => this.active + 1, ArrowLeft: () => this.active - 1,
      ArrowDown: () => of_group(group + 1), ArrowUp: () => of_group(group - 1),
      Home: () => 0, End: () => this.cells.length - 1,
    };
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.pick();
    }
    if (!goals[event.key]) return;
    event.preventDefault();
    this.point_at(Math.max(0, Math.min(goals[event.key](), this.cells.length - 1)));
  }
}
