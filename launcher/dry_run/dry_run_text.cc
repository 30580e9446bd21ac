// SPDX-License-Identifier: Apache-2.0
#include "launcher/dry_run/dry_run.h"

#include <algorithm>
#include <cstdio>

#include "common/shell_words.h"
#include "common/text.h"
#include "rendezvous/messages/job_settings.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kTitleWidth = 14;
constexpr char kLater[] = "when the nodes meet";

bool has_controls(const std::string& word) {
  return std::any_of(word.begin(), word.end(), [](char letter) {
    return static_cast<unsigned char>(letter) < ' ' || letter == 0x7f;
  });
}

// Quotes a word for a shell. A word with control characters becomes bash's $'…', which terminals
// don't interpret.
std::string word_text(const std::string& word) {
  if (!has_controls(word)) return shell_quoted(word);
  std::string quoted = "$'";
  for (const char letter : word) {
    if (letter == '\'' || letter == '\\') {
      quoted.append(1, '\\').append(1, letter);
    } else if (static_cast<unsigned char>(letter) < ' ' || letter == 0x7f) {
      char octal[8];
      std::snprintf(octal, sizeof octal, "\\%03o", static_cast<unsigned>(letter));
      quoted += octal;
    } else {
      quoted += letter;
    }
  }
  return quoted + "'";
}

std::string command_text(const std::vector<std::string>& words) {
  return listed(words, " ", word_text);
}

std::string variable_text(const ForecastVariable& variable) {
  const bool is_plain = variable.is_later && !has_controls(variable.value);
  return variable.name + "=" + (is_plain ? variable.value : word_text(variable.value));
}

std::string or_later(const std::optional<int>& number) {
  return number ? std::to_string(*number) : "?";
}

// Returns "0-3" or "5".
std::string range_text(int first, int count) {
  return count == 1 ? std::to_string(first) : concat(first, "-", first + count - 1);
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

// A table whose columns are as wide as their widest cell. The last column has no blanks after it.
class Table {
 public:
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const {
    std::vector<std::size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      text += "  ";
      for (std::size_t i = 0; i < row.size(); ++i) {
        text += row[i];
        if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

class Printer {
 public:
  explicit Printer(const DryRun& run)
      : run_(run), shown_(run.nodes[static_cast<std::size_t>(run.described)]) {}

  std::string print() {
    text_ = "Dry run: nothing is started, made or connected to.\n\n";
    say_job();
    say_nodes();
    say_workers();
    say_environment();
    say_commands();
    return std::move(text_);
  }

 private:
  void line(const std::string& title, const std::string& text) {
    text_ += title + std::string(kTitleWidth - title.size(), ' ') + text + '\n';
  }

  bool is_on_hosts() const { return !run_.nodes.front().command.empty(); }

  void say_job() {
    const LaunchConfig& config = run_.config;
    line("nodes meet", concat(run_.endpoint, " (", run_.origin, "); served by ", run_.served_by));
    line("job id", one_line(run_.job_id));
    line("ranks", run_.mode == "static"     ? "fixed"
                  : run_.mode == "local"    ? "one node"
                  : shown_.rank.has_value() ? "by node rank"
                                            : "given out when the nodes meet");
    line("size", size_text());
    for (const std::string& what : run_.assumed) line("", "if " + what);
    if (config.preflight_doctor != DoctorGate::kOff) {
      line("doctor", "ddprunctl doctor, before a node joins: not run now");
    }
    if (!config.preflight.empty()) {
      line("preflight",
           concat(word_text(config.preflight), ", before a node joins, ",
                  config.preflight_timeout.count() / 1000.0, " s at most: not run now"));
    }
    if (config.preload_auto) {
      const std::string& cache = config.preload_cache;
      line("preload", concat("what the workers import until their first step, for restarts",
                             cache.empty() ? "" : " and, once it is kept, for the first round",
                             " (docs/warm.md)"));
      if (!cache.empty()) line("", "kept in " + one_line(cache));
    } else if (!config.preload.empty()) {
      line("preload",
           listed(config.preload) + ", once on each node (docs/warm.md): not imported now");
    }
    line("limits", limits_text());
    say_worker_limits();
    if (!config.event_log.empty()) line("events", one_line(config.event_log));
    if (!run_.run_directory.empty()) line("log files", run_.run_directory + "/");
    if (!run_.forwarded.empty()) {
      line("forwarded", concat(run_.forwarded.size(), " variables of this shell (--env)"));
    }
  }

  void say_worker_limits() {
    const auto limits = agent::shown_limits(run_.config.worker_limits);
    if (limits.empty()) return;
    const auto text_of = [](const auto& limit) { return concat(limit.option, " ", limit.value); };
    line("each worker", concat(listed(limits, ", ", text_of),
                               run_.config.worker_limits.required ? " (required)" : ""));
    if (!run_.isolation) {
      line("", "enforced as each host can");
    } else if (run_.isolation->makes_cgroups) {
      line("", "cgroups are made in " + run_.isolation->place.directory);
    }
    for (const auto& each :
         run_.isolation ? run_.isolation->unenforced : std::vector<agent::UnenforcedLimit>()) {
      line("", concat(each.option, " can't be enforced here: ", each.why));
    }
  }

  std::string size_text() const {
    const LaunchConfig& config = run_.config;
    std::string text = counted(config.max_nodes, "node");
    if (config.min_nodes != config.max_nodes) text = concat(config.min_nodes, " to ", text);
    if (config.spares > 0) text += " and " + counted(config.spares, "spare");
    const auto& nodes = run_.nodes;
    const bool are_alike = std::all_of(nodes.begin(), nodes.end(), [&](const NodeDryRun& node) {
      return node.num_workers == nodes.front().num_workers;
    });
    if (!nodes.front().num_workers) {
      text += ", workers: --nproc-per-node=" + run_.config.nproc_per_node + " of each host";
    } else if (are_alike) {
      text += " x " + counted(*nodes.front().num_workers, "worker");
    }
    if (run_.world_size) text += concat(" = ", *run_.world_size);
    return text;
  }

  std::string limits_text() const {
    std::string text;
    for (const NamedLimit& limit : limits_of(run_.config)) {
      if (!limit.value) continue;
      text += concat(text.empty() ? "" : ", ", limit.option, " ", number_text(*limit.value),
                     limit.is_time ? " s" : "");
    }
    return text;
  }

  void say_nodes() {
    text_ += "\nNodes\n";
    Table table;
    const bool on_hosts = is_on_hosts();
    table.add({"host", "node rank", "local ranks", "global ranks", on_hosts ? "started by" : ""});
    for (const NodeDryRun& node : run_.nodes) {
      const int count = node.num_workers.value_or(0);
      std::string global = node.is_spare ? "none: a spare" : kLater;
      if (node.first_global_rank && count > 0) global = range_text(*node.first_global_rank, count);
      std::string host = node.host.empty() ? "?" : one_line(node.host);
      if (node.is_here && !on_hosts) host += " (here)";
      table.add({host,
                 node.rank       ? std::to_string(*node.rank)
                 : node.is_spare ? "-"
                                 : kLater,
                 count > 0 ? range_text(0, count) : "?", global,
                 on_hosts ? command_text(node.command) : ""});
    }
    text_ += table.text();
    if (!on_hosts) return;
    text_ += "\nEach node's ddprun, with arguments that reach it over standard input\n";
    for (const NodeDryRun& node : run_.nodes) {
      text_ += "  " + one_line(node.host) + ": ddprun " + command_text(node.arguments) + '\n';
    }
  }

  void say_workers() {
    if (shown_.places.empty()) {
      const std::string mode = run_.config.binding == agent::BindingMode::kNone
                                   ? "as ddprun's own there"
                                   : "bound by each host's own plan (--numa-binding)";
      text_ += "\nCPUs and GPUs: " + mode + "\n";
      return;
    }
    text_ += "\nWorkers here\n";
    Table table;
    table.add({"local rank", "global rank", "CPUs", "GPU"});
    for (std::size_t i = 0; i < shown_.workers.size(); ++i) {
      const WorkerForecast& worker = shown_.workers[i];
      const ForecastPlace& place = shown_.places[i];
      table.add({std::to_string(worker.local_rank), or_later(worker.global_rank),
                 place.is_bound ? place.cpus : "any of " + place.cpus,
                 place.gpu.empty() ? "none" : place.gpu});
    }
    text_ += table.text();
  }

  void say_environment() {
    text_ += "\nVariables of the worker with local rank 0" +
             (is_on_hosts() ? " on " + one_line(shown_.host) : std::string()) +
             ", beside those that it inherits\n";
    for (const ForecastVariable& variable : run_.environment) {
      text_ += "  " + variable_text(variable) + '\n';
    }
    for (const std::string& name : run_.removed) text_ += "  (not inherited: " + name + ")\n";
    if (shown_.workers.size() > 1) text_ += "\nOther values of the others\n";
    for (std::size_t i = 1; i < shown_.workers.size(); ++i) {
      const WorkerForecast& worker = shown_.workers[i];
      text_ += concat("  local rank ", worker.local_rank, ":");
      for (const ForecastVariable& variable : worker.environment) {
        text_ += " " + variable_text(variable);
      }
      text_ += '\n';
    }
    if (is_on_hosts() && run_.nodes.size() > 1) {
      text_ += "  On the other hosts likewise, with the ranks of the table. --json has them all.\n";
    }
  }

  // Workers next to each other with the same command share a line.
  void say_commands() {
    text_ += "\nCommands\n";
    const auto& workers = shown_.workers;
    for (std::size_t i = 0; i < workers.size();) {
      std::size_t end = i + 1;
      while (end < workers.size() && workers[end].command == workers[i].command) ++end;
      const int first = workers[i].local_rank;
      text_ += concat("  local rank ", range_text(first, static_cast<int>(end - i)), ": ",
                      command_text(workers[i].command), "\n");
      i = end;
    }
    const bool has_files = std::any_of(workers.begin(), workers.end(),
                                       [](const auto& worker) { return !worker.files.empty(); });
    if (!has_files) return;
    text_ += "\nLog files\n";
    for (const WorkerForecast& worker : workers) {
      for (const std::string& file : worker.files) {
        text_ += concat("  local rank ", worker.local_rank, ": ", word_text(file), "\n");
      }
    }
  }

  const DryRun& run_;
  const NodeDryRun& shown_;
  std::string text_;
};

}  // namespace

std::vector<NamedLimit> limits_of(const LaunchConfig& config) {
  const auto seconds = [](std::chrono::milliseconds time) -> std::optional<double> {
    if (time.count() == 0) return std::nullopt;
    return static_cast<double>(time.count()) / 1000;
  };
  const PreemptionOptions& preemption = config.preemption;
  std::vector<NamedLimit> limits;
  for (const auto& [option, value] : membership::restart_limits(config)) {
    limits.push_back({option, value, false});
  }
  const std::vector<NamedLimit> times = {
      {"rendezvous-timeout", seconds(config.timeouts.join)},
      {"last-call-timeout",
       config.min_nodes == config.max_nodes ? std::nullopt : seconds(config.timeouts.last_call)},
      {"keep-alive-timeout", seconds(config.timeouts.keep_alive)},
      {"start-timeout", seconds(config.timeouts.start)},
      {"exit-barrier-timeout", seconds(config.timeouts.exit_barrier)},
      {"replacement-timeout", seconds(config.timeouts.replacement)},
      {"shutdown-timeout", static_cast<double>(config.timeouts.shutdown.count()) / 1000},
      {"time-limit",
       preemption.time_limit ? seconds(*preemption.time_limit) : std::optional<double>()},
  };
  limits.insert(limits.end(), times.begin(), times.end());
  return limits;
}

std::string to_text(const DryRun& run) { return Printer(run).print(); }

}  // namespace ddprun::launcher
