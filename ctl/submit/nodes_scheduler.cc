// SPDX-License-Identifier: Apache-2.0
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/log.h"
#include "ctl/submit/ddprun_command.h"
#include "ctl/submit/job_states.h"
#include "ctl/submit/scheduler.h"
#include "rendezvous/gangs/gang.h"
#include "rendezvous/gangs/gang_json.h"

namespace ddprun::submit {
namespace {

constexpr std::chrono::milliseconds kPageWait{1'000};
constexpr std::chrono::seconds kPostLimit{20}, kShutdownTimeout{30};  // the latter: ddprun's own
constexpr std::chrono::milliseconds kRetry{200};

std::string user_name() {
  const passwd* entry = ::getpwuid(::geteuid());
  if (entry == nullptr) {
    throw Error(ErrorCode::kInvalidArgument, concat("uid ", ::geteuid(), " has no user name"));
  }
  return entry->pw_name;
}

// The id goes into a request's target.
void require_name(const std::string& id) {
  if (gangs::is_gang_name(id)) return;
  throw Error(ErrorCode::kInvalidArgument,
              concat("nodes:", one_line(id), " is no job: wants 1 to ", gangs::kMaxNameBytes,
                     " letters, digits, \".\", \"_\", \"-\""));
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

class NodesScheduler : public Scheduler {
 public:
  NodesScheduler(Environment environment, std::string ddprun, FindQueue find_queue)
      : environment_(std::move(environment)),
        ddprun_(std::move(ddprun)),
        find_queue_(std::move(find_queue)) {}

  const char* name() const override { return "nodes"; }
  Plan plan(const JobFile& job) override {
    auto [spec, notes] = submission_of(job);
    for (std::string& variable : spec.environment) variable.resize(variable.find('='));
    Plan plan;
    plan.how = concat("POST ", gangs::kGangsPath, " at ",
                      to_string(find_queue_(job.nodes.queue).client.endpoints.front()),
                      ", with the values of the variables");
    plan.text = gangs::gang_to_json(spec) + "\n";
    plan.ranks = rank_map(job, "node # of the job");
    plan.notes = rank_notes(job);
    plan.notes.insert(plan.notes.end(), notes.begin(), notes.end());
    return plan;
  }

  std::string submit(const JobFile& job) override {
    auto [spec, notes] = submission_of(job);
    spec.id = spec.id.substr(0, spec.id.rfind('-') + 1) + drawn_suffix();
    const NodesQueue queue = find_queue_(job.nodes.queue);
    for (const std::string& note : notes) log_warning(note);
    post(queue, spec);
    queue_ = job.nodes.queue;
    flags_ = queue.flags;
    known_ = spec.id;
    return spec.id;
  }

  std::vector<std::string> flags() const override { return flags_; }
  std::vector<JobState> list() override {
    const std::string user = user_name();
    std::vector<JobState> states;
    for (const gangs::GangNews& news : pages::GangClient(find_queue_(queue_).client).list()) {
      if (news.state.user == user) states.push_back(state_of(news));
    }
    std::stable_partition(states.begin(), states.end(),
                          [](const JobState& state) { return !is_over(state.phase); });
    return states;
  }

  JobState status(const std::string& id) override {
    require_name(id);
    return state_of(known(id, pages::GangClient(find_queue_(queue_).client).status(id)));
  }

  bool may_end_in_question() const override { return true; }
  // After one answer most errors may pass: another process, or one with another token, may use the
  // port for a while.
  bool may_be_over(const Error& error) const override {
    return error.code() != ErrorCode::kPeerLost;
  }

  void cancel(const std::string& id) override {
    require_name(id);
    known(id, pages::GangClient(find_queue_(queue_).client).cancel(id));
  }

  void logs(const std::string& id, bool follow, const LogView& view) override {
    require_name(id);
    const pages::GangClient client(find_queue_(queue_).client);
    pages::GangReader reader;
    const auto show = [&](const std::vector<pages::GangReader::Piece>& pieces) {
      return std::ranges::all_of(pieces, [&](const auto& piece) { return view.show(piece.text); });
    };
    while (!reader.is_over() && (follow || reader.has_more())) {
      const auto wait = follow ? kPageWait : std::chrono::milliseconds(0);
      std::vector<pages::GangReader::Piece> pieces;
      const auto question = [&] {
        pieces = reader.take(known(id, client.logs(id, reader.places(), reader.seen(), wait)));
      };
      if (!view.ask(question)) return;
      if (!show(pieces)) return;
      if (follow && !view.pause(std::chrono::milliseconds(0))) return;
    }
    if (!show(reader.take_rest())) return;
    for (const std::string& trouble : reader.troubles()) log_warning(trouble);
  }

 private:
  struct Submission {
    gangs::GangSpec spec;
    std::vector<std::string> notes;
  };
  Submission submission_of(const JobFile& job) const {
    const std::string config = check_flags(job, ddprun_, name());
    const NodeCount count = nodes_wanted(job);
    Submission submission;
    gangs::GangSpec& spec = submission.spec;
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
    // With --nnodes, since spares are nodes of the gang, too. Without the program's own name.
    const std::vector<std::string> command = ddprun_command(job, traits);
    spec.arguments.assign(command.begin() + 1, command.end());
    std::vector<std::string> wishes;
    for (const std::string& name : job.environment_without) wishes.push_back("-" + name);
    for (const auto& [name, value] : job.environment) wishes.push_back(concat(name, "=", value));
    submission.notes = gangs::take_environment(forwarded_environment(environment_, wishes), spec);
    spec.directory = job.work_directory();
    spec.stop_ms =
        gangs::stop_ms_of(shown_time(config, "shutdown_timeout").value_or(kShutdownTimeout));
    const std::string wrong = gangs::check_submission(spec, "environment_without");
    if (!wrong.empty()) throw Error(ErrorCode::kInvalidArgument, job.path + ": " + wrong);
    return submission;
  }

  // Posts the job, and again for kPostLimit if an answer was lost. The job may exist then, but only
  // once, since its id was drawn here.
  static void post(const NodesQueue& queue, const gangs::GangSpec& spec) {
    const pages::GangClient client(queue.client);
    const Deadline deadline = Deadline::after(kPostLimit);
    for (bool may_be_there = false;; std::this_thread::sleep_for(kRetry)) {
      try {
        client.submit(spec);
        return;
      } catch (const Error& error) {
        const bool is_foreign = error.code() == ErrorCode::kProtocol;
        if (!may_pass(error) && !(is_foreign && may_be_there)) throw;
        // Another endpoint may have got the request, whatever error the last one gave.
        const bool is_single = queue.client.endpoints.size() == 1;
        may_be_there |= !is_single || error.code() != ErrorCode::kUnavailable;
        if (!may_be_there) throw;
        if (!deadline.expired()) continue;
        throw Error(error.code(), concat(error.what(), "; nodes:", spec.id,
                                         " may have been submitted all the same"));
      }
    }
  }

  gangs::GangNews known(const std::string& id, std::optional<gangs::GangNews> news) {
    if (!news) {
      throw known_ == id
          ? Error(ErrorCode::kPeerLost, pages::GangClient::forgotten_text(id))
          : Error(ErrorCode::kInvalidArgument, concat("the ddprund knows no job nodes:", id,
                                                      "; ddprunctl jobs --to=nodes lists yours"));
    }
    known_ = id;
    return *std::move(news);
  }

  const Environment environment_;
  const std::string ddprun_;
  const FindQueue find_queue_;
  ctl::ConfiguredEndpoint queue_;   // the queue of the submitted job: later questions go there, too
  std::vector<std::string> flags_;  // ddprunctl's flags for that queue
  std::string known_;               // a gang that the queue was seen to have; empty: none yet
};

}  // namespace

std::unique_ptr<Scheduler> nodes_scheduler(Environment environment, std::string ddprun,
                                           FindQueue find_queue) {
  return std::make_unique<NodesScheduler>(std::move(environment), std::move(ddprun),
                                          std::move(find_queue));
}

}  // namespace ddprun::submit
