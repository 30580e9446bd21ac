// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/ddprun_command.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/parsed_number.h"
#include "common/process_facts.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "ctl/submit/run_program.h"

namespace ddprun::submit {
namespace {

class Words {
 public:
  explicit Words(std::string program) : words_{std::move(program)} {}

  void add(const std::string& flag, const std::string& value) {
    if (!value.empty()) words_.push_back("--" + flag + "=" + value);
  }
  void add(const std::string& flag, const std::optional<int>& value) {
    if (value) add(flag, std::to_string(*value));
  }
  void add(const std::vector<std::string>& words) {
    words_.insert(words_.end(), words.begin(), words.end());
  }
  std::vector<std::string> take() { return std::move(words_); }

 private:
  std::vector<std::string> words_;
};

// Returns the number of nodes as --nnodes has it: "2", "2:4". The job must give one.
std::string nodes_text(const JobFile& job) {
  const std::string least = std::to_string(job.min_nodes);
  return job.min_nodes == job.max_nodes ? least : least + ":" + std::to_string(job.max_nodes);
}

void add_limits(const JobFile& job, Words& words) {
  words.add("worker-memory", job.limits.memory);
  words.add("worker-pids", job.limits.pids);
  words.add("worker-cpuset", job.limits.cpuset);
  words.add("worker-io", job.limits.io);
}

// Unset: only the node can know the number.
std::optional<int> workers_of_node(const JobFile& job) {
  if (job.workers_per_node.empty()) return 1;
  std::string_view text = job.workers_per_node;
  return take_number<int>(text);
}

struct Decided {
  std::string_view flag;    // named as a key: "nproc_per_node"
  std::string_view key;     // the job file's key that decides it; empty: leave the flag out
  std::string_view places;  // where it is decided; empty: everywhere; "ssh": elsewhere leave it out
};

// The flags that decided_flags() finds. Those of the rendezvous are found only for standing agents:
// other nodes can meet at the user's own one.
constexpr std::array kDecided = {
    Decided{"nnodes", "nodes", ""},
    Decided{"nproc_per_node", "workers_per_node", ""},
    Decided{"spares", "spares", ""},
    Decided{"standalone", "", ""},
    Decided{"standing_agents", "", ""},
    Decided{"node_rank", "", ""},
    Decided{"master_addr", "", ""},
    Decided{"master_port", "", ""},
    Decided{"local_addr", "", ""},  // it is of one node only
    Decided{"hosts", "to.ssh.hosts", "ssh"},
    Decided{"hostfile", "to.ssh.hostfile", "ssh"},
    Decided{"include_hosts", "to.ssh.include", "ssh"},
    Decided{"exclude_hosts", "to.ssh.exclude", "ssh"},
    Decided{"ssh", "to.ssh.ssh", "ssh"},
    Decided{"ssh_fanout", "", "slurm kubernetes nodes"},
    Decided{"ssh_timeout", "", "slurm kubernetes nodes"},
    Decided{"ssh_keep_alive", "", "slurm kubernetes nodes"},
    Decided{"remote_ddprun", "ddprun", ""},
    Decided{"env", "[environment] or environment_without", ""},
    Decided{"rdzv_endpoint", "to.nodes.endpoint", "nodes"},
    Decided{"rdzv_backend", "", "nodes"},
    Decided{"rdzv_id", "", "nodes"},
    Decided{"token_file", "to.nodes.token_file", "nodes"},
    Decided{"tls_ca", "to.nodes.tls_ca", "nodes"},
    Decided{"tls_cert", "to.nodes.tls_cert", "nodes"},
    Decided{"tls_key", "to.nodes.tls_key", "nodes"},
};

// Returns the lines "KEY = VALUE  # WHO" by KEY, for values that somebody gave. Defaults are
// comments, and are left out.
std::map<std::string_view, std::string_view> said_in(std::string_view config) {
  std::map<std::string_view, std::string_view> said;
  while (!config.empty()) {
    const std::string_view line = take_until(config, "\n");
    if (line.starts_with('#') || line.find(" = ") == std::string_view::npos) continue;
    said[line.substr(0, line.find(" = "))] = line;
  }
  return said;
}

// Returns the output of `ddprun --show-config` with the job's flags. Returns an empty text, or
// throws Error, as check_flags() does.
std::string config_of(const JobFile& job, const std::string& ddprun) {
  JobFile here = job;
  here.ddprun.clear();
  const CommandTraits traits{
      .ddprun = ddprun, .default_nodes = "1", .says_nodes = true, .flags = {}};
  std::vector<std::string> words = ddprun_command(here, traits);
  words.insert(words.begin() + 1, "--show-config");
  ProgramEnd end;
  try {
    end = run_program({.argv = words, .input = {}, .environment = {}});
  } catch (const Error&) {
    return {};
  }
  if (end.status == 0) return end.out;
  if (end.status != static_cast<int>(ExitCode::kUsage)) return {};
  const std::size_t last = end.err.find_last_not_of('\n');
  throw Error(ErrorCode::kInvalidArgument,
              last == std::string::npos ? failure_text(end) : end.err.substr(0, last + 1));
}

}  // namespace

std::vector<std::string> ddprun_command(const JobFile& job, const CommandTraits& traits) {
  Words words(job.ddprun.empty() ? traits.ddprun : job.ddprun);
  words.add(traits.flags);
  if (traits.says_nodes) {
    words.add("nnodes", job.max_nodes == 0 ? traits.default_nodes : nodes_text(job));
  }
  if (job.spares > 0) words.add("spares", job.spares);
  words.add("nproc-per-node", job.workers_per_node);
  add_limits(job, words);
  for (const auto& [flag, number] : job.restarts.flags) words.add(flag, number);
  words.add("preflight-doctor", job.preflight.doctor);
  words.add("preflight", job.preflight.command);
  if (job.preflight.timeout) {
    words.add("preflight-timeout", std::to_string(job.preflight.timeout->count()));
  }
  if (!job.log_dir.empty()) {
    words.add("log-dir", job.log_dir);
    words.add("tee", "3");
  }
  words.add(job.flags);
  if (job.command.front().starts_with('-')) words.add({"--"});
  words.add(job.command);
  return words.take();
}

NodeCount nodes_wanted(const JobFile& job) {
  return {std::max(job.min_nodes, 1) + job.spares, std::max(job.max_nodes, 1) + job.spares};
}

std::vector<RankRow> rank_map(const JobFile& job, const std::string& node) {
  const std::optional<int> workers = workers_of_node(job);
  const int most = nodes_wanted(job).most;
  std::vector<RankRow> rows;
  for (int i = 0; i < most; ++i) {
    RankRow row{.node = node, .node_rank = i, .first_global_rank = {}, .num_workers = workers};
    if (const std::size_t at = node.find('#'); at != std::string::npos) {
      row.node.replace(at, 1, std::to_string(i));
    }
    if (i >= most - job.spares) {
      row.num_workers = 0;
    } else if (workers) {
      row.first_global_rank = i * *workers;
    } else if (i == 0) {
      row.first_global_rank = 0;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> rank_notes(const JobFile& job) {
  std::vector<std::string> notes;
  if (job.min_nodes != job.max_nodes) {
    notes.push_back("ranks are those of a round of " + std::to_string(job.max_nodes) +
                    " nodes; it may have fewer, down to " + std::to_string(job.min_nodes));
  }
  if (job.spares > 0) {
    notes.push_back("the last " + std::to_string(job.spares) +
                    " are spares; the first ones to come have the places");
  }
  return notes;
}

std::vector<std::string> decided_flags(std::string_view place, std::string_view without,
                                       std::string_view with) {
  const auto before = said_in(without), after = said_in(with);
  std::vector<std::string> lines;
  for (const Decided& each : kDecided) {
    const bool is_of_ssh = each.places == "ssh",
               is_named = each.places.find(place) != each.places.npos;
    const bool is_here = each.places.empty() || is_of_ssh || is_named;
    const auto found = after.find(each.flag);
    if (!is_here || found == after.end()) continue;
    const auto known = before.find(each.flag);
    if (known != before.end() && known->second == found->second) continue;
    std::string flag(each.flag);
    std::replace(flag.begin(), flag.end(), '_', '-');
    lines.push_back(each.key.empty() || (is_of_ssh && !is_named)
                        ? concat("flags: --", flag, " is not the job's to say with --to ", place,
                                 ": leave it out")
                        : concat("flags: --", flag, " is decided by a key of the job file: say ",
                                 each.key, " in its place"));
  }
  return lines;
}

std::string ddprun_beside() {
  const std::string beside = own_folder() + "/ddprun";
  return ::access(beside.c_str(), X_OK) == 0 ? beside : "ddprun";
}

std::string check_flags(const JobFile& job, const std::string& ddprun, std::string_view place) {
  const std::string config = config_of(job, ddprun);
  if (config.empty() || job.flags.empty()) return config;
  JobFile bare = job;
  bare.flags.clear();
  const std::string without = config_of(bare, ddprun);
  if (without.empty()) return config;
  const std::vector<std::string> decided = decided_flags(place, without, config);
  if (!decided.empty()) {
    const auto of_file = [&](const std::string& line) { return concat(job.path, ": ", line); };
    throw Error(ErrorCode::kInvalidArgument, listed(decided, "\n", of_file));
  }
  return config;
}

std::optional<std::chrono::milliseconds> shown_time(std::string_view config,
                                                    const std::string& key) {
  const std::string start = key + " = ";
  while (!config.empty()) {
    std::string_view line = take_until(config, "\n");
    if (line.starts_with('#')) line.remove_prefix(1);  // a default is a comment
    if (!line.starts_with(start)) continue;
    std::string_view value = line.substr(start.size());
    value = value.substr(0, value.find("  #"));
    if (value.size() > 1 && value.front() == '"') value = value.substr(1, value.size() - 2);
    if (const auto seconds = parse_decimal(value)) {
      return std::chrono::milliseconds(static_cast<std::int64_t>(*seconds * 1'000));
    }
    return parse_duration(value);
  }
  return std::nullopt;
}

}  // namespace ddprun::submit
