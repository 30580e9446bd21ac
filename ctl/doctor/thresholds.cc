// SPDX-License-Identifier: Apache-2.0
#include "ctl/doctor/thresholds.h"

#include <algorithm>

#include "common/check.h"
#include "common/regular_file.h"
#include "common/suggest.h"
#include "common/toml.h"

namespace ddprun::doctor {
namespace {

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

std::vector<std::string> known_keys() {
  std::vector<std::string> keys;
  for (const Threshold& each : threshold_table()) keys.emplace_back(each.key);
  return keys;
}

constexpr char kSkip[] = "skip";

void take_skip(const toml::node& node, TomlProblems& problems, Thresholds& thresholds) {
  const toml::array* names = node.as_array();
  const bool are_texts = names && (names->empty() || names->is_homogeneous<std::string>());
  if (!are_texts) {
    return problems.add(node.source(), "skip wants names of checks: [\"gpu_xid\"]");
  }
  for (const toml::node& each : *names) thresholds.skip_too(*each.value<std::string>());
}

void take(const toml::table& table, const std::string& start, TomlProblems& problems,
          Thresholds& thresholds) {
  const std::vector<std::string> known = known_keys();
  for (const auto& [name, node] : table) {
    const std::string key = start + std::string(name.str());
    if (key == kSkip) {
      take_skip(node, problems, thresholds);
      continue;
    }
    if (const toml::table* inner = node.as_table()) {
      take(*inner, key + ".", problems, thresholds);
      continue;
    }
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      problems.add(name.source(), "unknown key " + shown_word(key) + did_you_mean(key, known));
      continue;
    }
    const auto number = node.is_number() ? node.value<double>() : std::nullopt;
    if (!number || !(*number >= 0)) {
      problems.add(node.source(), key + " wants a number of 0 or more");
    } else {
      thresholds.set(key, *number);
    }
  }
}

}  // namespace

const std::vector<Threshold>& threshold_table() {
  static const std::vector<Threshold> table = {
      {"fast_link.from", 25'000, "Mb/s", "links as fast as this want large TCP buffers"},
      {"rmem_max.warn", 16 * kMiB, "bytes", "less, with a fast link"},
      {"wmem_max.warn", 16 * kMiB, "bytes", "less, with a fast link"},
      {"tcp_rmem.warn", 16 * kMiB, "bytes", "a smaller largest one, with a fast link"},
      {"tcp_wmem.warn", 16 * kMiB, "bytes", "a smaller largest one, with a fast link"},
      {"somaxconn.warn", 4096, "connections", "less"},
      {"tcp_max_syn_backlog.warn", 4096, "connections", "less"},
      {"port_range.warn", 16'000, "ports", "fewer"},
      {"file_max.warn", 388'067, "files", "less"},
      {"open_files.warn", 65'536, "files", "a hard limit below it"},
      {"open_files.fail", 4096, "files", "a hard limit below it"},
      {"processes.warn", 16'384, "processes", "the smallest of the limits below it"},
      {"shared_memory.fail", 64 * kMiB, "bytes", "a size of at most this"},
      {"shared_memory.warn", 1 * kGiB, "bytes", "a size below it"},
      {"shared_memory.free_warn", 10, "percent", "less is free"},
      {"disk.fail", 1 * kGiB, "bytes", "less is free in a directory"},
      {"disk.used_warn", 90, "percent", "more of its file system is used"},
      {"mtu.fast_link", 100'000, "Mb/s", "links as fast as this want large frames"},
      {"mtu.warn", 9000, "bytes", "less on such a link"},
      {"gpu_count.least", 0, "GPUs", "fewer answer"},
      {"gpu_xid.window", 7200, "seconds", "how far back errors count"},
      {"gpu_memory.warn", 15 * kMiB, "bytes", "a process holds more of a GPU's memory"},
      {"gpu_ecc.warn", 20'000'000, "errors", "more were corrected since the driver was loaded"},
      {"rdma_link_downed.warn", 5, "per day", "a link went down more often since the start"},
      {"endpoint_clock.warn", 2, "seconds", "this clock and the rendezvous' differ by more"},
      {"latency.factor", 5, "", "a round trip takes so many times the median"},
      {"latency.least", 0.0005, "seconds", "and longer by more than this"},
      {"bandwidth.factor", 2, "", "a way has less than the median divided by this"},
      {"bandwidth.least", 0, "Mb/s", "or less than this"},
      {"bandwidth.bytes", 64 * kMiB, "bytes", "what is sent to see it, each way"},
      {"bandwidth.seconds", 1, "seconds", "or for how long"},
      {"all_reduce.bytes", 64 * kMiB, "bytes", "that every rank sums"},
      {"all_reduce.least", 0, "Mb/s", "less bus bandwidth"},
      {"node_clocks.warn", 0.1, "seconds", "a node's clock differs from the others' by more"},
  };
  return table;
}

double Thresholds::at(const std::string& key) const {
  if (const auto found = changed_.find(key); found != changed_.end()) return found->second;
  for (const Threshold& each : threshold_table()) {
    if (key == each.key) return each.value;
  }
  DDPRUN_CHECK(false);
  return 0;
}

Thresholds Thresholds::parse(std::string_view text, const std::string& path) {
  Thresholds thresholds;
  TomlProblems problems(path);
  take(parsed_toml(text, path), "", problems, thresholds);
  problems.throw_any();
  return thresholds;
}

Thresholds Thresholds::from_file(const std::string& path) {
  return parse(text_of_named_file(path), path);
}

}  // namespace ddprun::doctor
