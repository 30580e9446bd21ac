// SPDX-License-Identifier: Apache-2.0
// Reads a worker's environment. It collects all problems instead of stopping at the first.
#include "worker_sdk/core/worker_env.h"

#include <algorithm>
#include <optional>
#include <string_view>

#include "common/env_names.h"
#include "common/parsed_number.h"
#include "common/text.h"
#include "common/throw_error.h"
#include "worker_sdk/core/nccl/device_identity.h"

namespace ddprun {
namespace {

class Reader {
 public:
  static constexpr int kNone = -1;

  explicit Reader(const EnvLookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> text(const char* name) {
    const char* value = lookup_(name);
    if (value == nullptr) return std::nullopt;
    return std::string(value);
  }

  std::string required_text(const char* name) {
    auto value = text(name);
    if (!value || value->empty()) missing_.push_back(name);
    return value.value_or("");
  }

  // Returns a decimal in [low, high]. `fallback` is the value of an unset variable; kNone: it must
  // be set. Returns kNone after a problem, which is noted.
  int number(const char* name, int low, int high, int fallback = kNone) {
    const auto value = text(name);
    if (!value || value->empty()) {
      if (fallback == kNone) missing_.push_back(name);
      return fallback;
    }
    if (const auto parsed = number_within(*value, low, high)) return *parsed;
    problem(name, "=\"", *value, "\" is not a number from ", low, " to ", high);
    return kNone;
  }

  // Notes a problem if one of the words is none of `known`.
  void require_known(const char* name, const std::vector<std::string>& words,
                     const std::vector<std::string>& known) {
    for (const std::string& each : words) {
      if (std::ranges::find(known, each) != known.end()) continue;
      problem(name, "=\"", *text(name), "\": \"", each, "\" is none of ", listed(known));
    }
  }

  // Notes a contradiction between two variables that were both read without a problem.
  void require_below(const char* name, int value, const char* bound_name, int bound) {
    if (value == kNone || bound == kNone || value < bound) return;
    problem(name, "=", value, " must be below ", bound_name, "=", bound);
  }
  void require_at_most(const char* name, int value, const char* bound_name, int bound) {
    if (value == kNone || bound == kNone || value <= bound) return;
    problem(name, "=", value, " is more than ", bound_name, "=", bound);
  }

  void throw_if_any() const {
    if (missing_.empty() && problems_.empty()) return;
    std::vector<std::string> all = problems_;
    if (!missing_.empty()) all.insert(all.begin(), "not set: " + listed(missing_));
    throw_invalid("the worker's environment is not usable: ", listed(all, "; "),
                  ". Start the program with ddprun or torchrun, e.g. "
                  "\"ddprun --standalone --nproc-per-node=2 PROGRAM\"");
  }

 private:
  template <typename... Parts>
  void problem(const Parts&... parts) {
    problems_.push_back(concat(parts...));
  }

  const EnvLookup& lookup_;
  std::vector<std::string> missing_;
  std::vector<std::string> problems_;
};

constexpr int kMaxRanks = 1 << 24;
constexpr int kMaxRecorded = 1'000'000;

}  // namespace

std::vector<std::string> debug_words(const EnvLookup& lookup) {
  const char* const value = lookup(env::kDebug);
  std::vector<std::string> words;
  for (std::string_view rest = value != nullptr ? value : ""; !rest.empty();) {
    words.emplace_back(take_until(rest, ","));
  }
  return words;
}

WorkerEnv WorkerEnv::from_environment(const EnvLookup& lookup) {
  Reader reader(lookup);
  WorkerEnv result;
  result.rank = reader.number(env::kRank, 0, kMaxRanks);
  const int device = reader.number(env::kLocalRank, 0, kMaxRanks);
  result.local_rank =
      reader.text(env::kTrueLocalRank) ? reader.number(env::kTrueLocalRank, 0, kMaxRanks) : device;
  result.world_size = reader.number(env::kWorldSize, 1, kMaxRanks);
  result.local_world_size = reader.number(env::kLocalWorldSize, 1, kMaxRanks);
  result.node_rank = reader.number(env::kGroupRank, 0, kMaxRanks);
  result.num_nodes = reader.number(env::kGroupWorldSize, 1, kMaxRanks);
  result.restart_count = reader.number(env::kRestartCount, 0, 1 << 30, 0);
  const int usual_round = std::max(result.restart_count, 0) + 1;
  result.round = reader.number(env::kRound, 1, 1 << 30, usual_round);
  result.num_recorded = reader.number(env::kFlightRecorderSize, 0, kMaxRecorded, 2'000);
  const std::vector<std::string> debug = debug_words(lookup);
  reader.require_known(env::kDebug, debug, {"collectives", "nan", "times"});
  result.master.port = static_cast<std::uint16_t>(reader.number(env::kMasterPort, 1, 65535));
  result.master.host = reader.required_text(env::kMasterAddr);
  reader.require_below(env::kRank, result.rank, env::kWorldSize, result.world_size);
  reader.require_below(env::kLocalRank, device, env::kLocalWorldSize, result.local_world_size);
  reader.require_below(env::kGroupRank, result.node_rank, env::kGroupWorldSize, result.num_nodes);
  reader.require_at_most(env::kLocalWorldSize, result.local_world_size, env::kWorldSize,
                         result.world_size);
  reader.require_at_most(env::kGroupWorldSize, result.num_nodes, env::kWorldSize,
                         result.world_size);
  reader.throw_if_any();

  result.device = nccl::test_gpu(lookup(env::kTestGpu)).shared ? 0 : device;
  result.node_addr = reader.text(env::kNodeAddr).value_or("");
  result.agent_socket = reader.text(env::kAgentSocket).value_or("");
  result.error_file = reader.text(env::kErrorFile).value_or("");
  result.debug_collectives = std::ranges::find(debug, "collectives") != debug.end();
  result.debug_times = std::ranges::find(debug, "times") != debug.end();
  result.recovers_in_place = reader.text(env::kRecovery) == "inplace";
  result.recorder_dir = reader.text(env::kFlightRecorderDir).value_or("");
  result.run_id = reader.text(env::kRunId).value_or("none");
  return result;
}

}  // namespace ddprun
