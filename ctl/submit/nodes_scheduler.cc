// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/nodes_scheduler.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/forwarded_environment.h"
#include "common/log.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/drawn_suffix.h"
#include "ctl/submit/rank_map.h"
#include "rendezvous/gangs/gang_json.h"
#include "rendezvous/pages/gang_reader.h"

namespace ddprun::submit {
namespace {

constexpr std::chrono::milliseconds kPageWait{1'000};
constexpr std::int64_t kStopMs = 40'000;  // ddprun's --shutdown-timeout, and its own end

std::string user_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  if (entry == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, concat("uid ", ::geteuid(), " has no user name"));
  }
  return entry->pw_name;
}

Phase phase_of(const gangs::GangState& gang) {
  switch (gang.phase) {
    case gangs::GangPhase::kQueued:
      return Phase::kQueued;
    case gangs::GangPhase::kRunning:
    case gangs::GangPhase::kStopping:
      return Phase::kRunning;
    case gangs::GangPhase::kEnded:
      break;
  }
  if (!gang.cancelled.empty()) return Phase::kCancelled;
  return gang.exit_code == 0 ? Phase::kSucceeded : Phase::kFailed;
}

std::optional<WallTime> wall_time(std::int64_t ms) {
  if (ms == 0) return std::nullopt;
  return WallTime(std::chrono::milliseconds(ms));
}

JobState state_of(const gangs::GangNews& news) {
  const gangs::GangState& gang = news.state;
  JobState state;
  state.id = "nodes:" + gang.id;
  state.name = gang.name;
  state.phase = phase_of(gang);
  if (gang.phase == gangs::GangPhase::kEnded) state.exit_code = gang.exit_code;
  for (const gangs::GangPart& part : gang.parts) state.nodes.push_back(part.node);
  state.submitted = wall_time(gang.submitted);
  state.began = wall_time(gang.began);
  state.ended = wall_time(gang.over);
  const bool is_ending = gang.phase == gangs::GangPhase::kStopping && !gang.cancelled.empty();
  state.reason = gang.phase == gangs::GangPhase::kQueued ? news.waits_for
                 : is_ending                             ? "asked to end"
                                                         : gang.reason;
  return state;
}

}  // namespace

NodesScheduler::NodesScheduler(Environment environment, FindQueue find_queue)
    : environment_(std::move(environment)), find_queue_(std::move(find_queue)) {}

gangs::GangSpec NodesScheduler::spec_of(const JobFile& job) const {
  const NodeCount count = nodes_wanted(job);
  gangs::GangSpec spec;
  spec.user = user_name();
  spec.uid = ::geteuid();
  spec.name = job.name;
  spec.id = job.name.substr(0, gangs::kMaxNameBytes - 6) + "-" + kSuffixToCome;
  spec.min_nodes = count.least;
  spec.max_nodes = count.most;
  spec.workers = job.workers_per_node.empty() ? "1" : job.workers_per_node;
  spec.slots = job.nodes.slots_per_node.value_or(0);
  CommandTraits traits;
  if (job.limits.time) {
    traits.flags.push_back(concat("--time-limit=", job.limits.time->count()));
  }
  // With --nnodes, for spares are nodes of the gang, too; without the program's own name.
  const std::vector<std::string> command = ddprun_command(job, traits);
  spec.arguments.assign(command.begin() + 1, command.end());
  Environment environment = environment_;
  std::vector<std::string> wishes;
  for (const auto& [name, value] : job.environment) wishes.push_back(concat(name, "=", value));
  spec.environment = forwarded_environment(environment, wishes);
  spec.directory = job.work_directory();
  spec.stop_ms = kStopMs;
  const std::string wrong = gangs::check_spec(spec);
  if (!wrong.empty()) throw Error(ErrorCode::kInvalidArgument, job.path + ": " + wrong);
  return spec;
}

Plan NodesScheduler::plan(const JobFile& job) {
  gangs::GangSpec spec = spec_of(job);
  for (std::string& variable : spec.environment) variable.resize(variable.find('='));
  Plan plan;
  plan.how = concat("POST ", gangs::kGangsPath, " at ",
                    to_string(find_queue_(job.nodes).endpoints.front()),
                    ", with the values of the variables");
  plan.text = gangs::gang_to_json(spec) + "\n";
  plan.ranks = rank_map(job, "node # of the gang");
  plan.notes = rank_notes(job);
  return plan;
}

std::string NodesScheduler::submit(const JobFile& job) {
  gangs::GangSpec spec = spec_of(job);
  spec.id = spec.id.substr(0, spec.id.rfind('-') + 1) + drawn_suffix();
  pages::GangClient(find_queue_(job.nodes)).submit(spec);
  queue_ = job.nodes;
  return spec.id;
}

std::vector<JobState> NodesScheduler::list() {
  const std::string user = user_name();
  std::vector<JobState> states;
  for (const gangs::GangNews& news : pages::GangClient(find_queue_(queue_)).list()) {
    if (news.state.user == user) states.push_back(state_of(news));
  }
  std::stable_partition(states.begin(), states.end(),
                        [](const JobState& state) { return !is_over(state.phase); });
  return states;
}

JobState NodesScheduler::status(const std::string& id) {
  return state_of(pages::GangClient(find_queue_(queue_)).status(id));
}

void NodesScheduler::cancel(const std::string& id) {
  pages::GangClient(find_queue_(queue_)).cancel(id);
}

void NodesScheduler::logs(const std::string& id, bool follow, const LogView& view) {
  const pages::GangClient client(find_queue_(queue_));
  pages::GangReader reader;
  for (bool has_more = true; !reader.is_over() && (follow || has_more);) {
    const bool asked_any = !reader.places().empty();
    const auto wait = follow ? kPageWait : std::chrono::milliseconds(0);
    gangs::GangNews news;
    const auto ask = [&] { news = client.logs(id, reader.places(), reader.seen(), wait); };
    view.call ? view.call(ask) : ask();
    const auto pieces = reader.take(news);
    for (const auto& piece : pieces) view.show(piece.text);
    has_more = !pieces.empty() || (!asked_any && !reader.places().empty());
    if (follow && !view.pause(std::chrono::milliseconds(0))) return;
  }
}

}  // namespace ddprun::submit
