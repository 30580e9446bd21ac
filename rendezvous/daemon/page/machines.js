// SPDX-License-Identifier: Apache-2.0
// Network and GPUs: each node's where there are few, else their sum and the chosen one's.

const most_shown = 4;

class Machine {
  element = make("div", "machine");
  constructor(name) {
    this.network = new LineChart(`${name}: network`);
    this.gpu = new LineChart(`${name}: GPUs in use`);
    this.text = make("p", "note");
    this.gpus = make("ul", "plain");
    this.element.append(this.network.element, this.gpu.element, this.text, this.gpus);
  }

  // monitor: of one node; null: of all together.
  draw(record, marks, monitor) {
    this.network.draw({
      lines: [{ name: "in", series: record.of("received") }, { name: "out", series: record.of("sent") }],
      text: rate_text, marks, top: 1000,  // bytes have no parts that an axis could have
    });
    const lines = [{ name: "mean", series: record.of("gpu") }];
    if ((monitor?.gpus?.length ?? 0) > 1) lines.push({ name: "least", series: record.of("least_gpu") });
    this.gpu.draw({ lines, text: percent_text, marks, top: 1 });
    if (!monitor) return;
    put(this.text, this.facts(monitor).join(" · "));
    put_list(this.gpus, (monitor.gpus ?? []).map((gpu, index) => ({ gpu, index })), (each) => each.index, () => make("li"),
      (item, { gpu, index }) => put(item, [`GPU ${index}`, ...this.gpu_facts(gpu)].join(" · ")));
  }

  facts(monitor) {
    const has = Number.isFinite, facts = [];
    if (has(monitor.cpu)) facts.push(`CPU ${percent_text(monitor.cpu)}`);
    if (has(monitor.memory_used_bytes) && has(monitor.memory_bytes)) {
      facts.push(`memory ${bytes_text(monitor.memory_used_bytes)} of ${bytes_text(monitor.memory_bytes)}`);
    }
    if (has(monitor.tcp_retransmits_per_second)) facts.push(`${number_text(monitor.tcp_retransmits_per_second)} TCP retransmits/s`);
    return facts;
  }

  gpu_facts(gpu) {
    const has = Number.isFinite, facts = [];
    if (has(gpu.use)) facts.push(percent_text(gpu.use));
    if (has(gpu.memory_used_bytes) && has(gpu.memory_bytes)) facts.push(`${bytes_text(gpu.memory_used_bytes)} of ${bytes_text(gpu.memory_bytes)}`);
    if (has(gpu.watts)) facts.push(`${Math.round(gpu.watts)} W`);
    if (has(gpu.celsius)) facts.push(`${Math.round(gpu.celsius)} °C`);
    return facts;
  }
}

class Machines {
  shown = new Map();  // key → Machine
  chosen = null;

  constructor() {
    by_id("machine").addEventListener("change", (event) => {
      this.chosen = event.target.value;
      this.draw(this.model, this.job);
    });
  }

  draw(model, job) {
    this.model = model;
    this.job = job;
    const nodes = job.in_order.filter((node) => node.monitor);
    show(by_id("machines"), nodes.length > 0);
    if (nodes.length === 0) return;
    const marks = model.records.get(job.run_id)?.marks ?? [];
    const is_many = nodes.length > most_shown;
    show(by_id("machine_choice"), is_many);
    const cards = [];
    if (nodes.length > 1) cards.push({ key: "all", name: `all ${nodes.length} nodes`, record: model.record(model.sum, job.run_id), monitor: null });
    const of_node = (node) => ({ key: node_key(node), name: node_name(node), record: model.record(model.machines, node_key(node)), monitor: node.monitor });
    if (is_many) {
      put_list(by_id("machine"), nodes, node_key, (node) => {
        const option = make("option", "", node_name(node));
        option.value = node_key(node);
        return option;
      }, () => {});
      cards.push(of_node(nodes.find((node) => node_key(node) === this.chosen) ?? nodes[0]));
    } else {
      cards.push(...nodes.map(of_node));
    }
    put_list(by_id("machine_charts"), cards, (card) => card.key, (card) => {
      const machine = new Machine(card.name);
      machine.element.machine = machine;
      return machine.element;
    }, (element, card) => element.machine.draw(card.record, marks, card.monitor));
  }
}
