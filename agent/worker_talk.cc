// SPDX-License-Identifier: Apache-2.0
#include "agent/worker_talk.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "agent/observe/observer.h"
#include "common/error.h"
#include "common/log_level.h"
#include "common/text.h"
#include "common/variant.h"

namespace ddprun::agent {

namespace event = membership::agent_event;

WorkerTalk::WorkerTalk(boost::asio::io_context& io, const NodeAgentOptions& options,
                       LogWriter* writer, Say say, Tell tell)
    : io_(io),
      options_(options),
      say_(std::move(say)),
      tell_(std::move(tell)),
      details_(options.environment.num_workers, writer) {}

void WorkerTalk::begin(std::uint64_t round, int first_global_rank) {
  round_ = round;
  ranks_ = {first_global_rank};
  first_steps_.clear();
  frameworks_.clear();
  if (!gpu_errors_) {
    gpu_errors_ = GpuErrorLog::open(
        io_, [this](const std::string& line) { tell_(LogLevel::kWarning, line); });
  }
  if (gpu_errors_) gpu_errors_->begin_round();
  close();
}

void WorkerTalk::open(Places places) {
  if (!open_socket(places.socket_directory)) places.socket_directory.clear();
  expect(std::move(places));
}

bool WorkerTalk::open_socket(const std::string& directory) {
  if (directory.empty()) return false;
  try {
    begin_pages();
    socket_ = std::make_unique<AgentSocket>(io_, pages_, directory, socket_events());
  } catch (const Error& error) {
    tell_(LogLevel::kWarning, concat("workers can't report their progress: ", error.what()));
    return false;
  }
  try {
    if (options_.environment.observes) observer_ = put_observer(directory);
  } catch (const Error& error) {
    tell_(LogLevel::kWarning, concat("PyTorch programs can't be observed: ", error.what()));
  }
  return true;
}

void WorkerTalk::expect(Places places) {
  details_.begin_round(round_, places.log_directory, places.socket_directory,
                       std::move(places.cgroup));
  open_timers(places.socket_directory, std::move(places.pids));
}

void WorkerTalk::open_timers(const std::string& directory,
                             std::function<std::vector<pid_t>()> pids) {
  timers_.reset();
  TimerPipeOptions options;
  options.path = TimerPipe::path_of(options_.environment.inherited, directory);
  if (options.path.empty()) return;
  options.global_rank = [this](int local_rank) { return ranks_.of(local_rank); };
  options.workers = std::move(pids);
  options.tell = tell_;
  try {
    timers_ = TimerPipe::open(io_, std::move(options));
  } catch (const Error& error) {
    tell_(LogLevel::kWarning, concat("workers have no timers: ", error.what()));
  }
}

void WorkerTalk::take(std::unique_ptr<AgentSocket> socket) { socket_ = std::move(socket); }

AgentSocketEvents WorkerTalk::socket_events() {
  AgentSocketEvents events;
  events.said = [this](int local_rank, const WorkerLine& line) {
    if (socket_) heard(local_rank, line);
  };
  events.tell = tell_;
  return events;
}

void WorkerTalk::begin_pages() { pages_.begin_round(round_, options_.environment.num_workers); }

void WorkerTalk::go_on(std::uint64_t round, RankNumbers ranks) {
  round_ = round;
  ranks_ = std::move(ranks);
  first_steps_.clear();
  if (gpu_errors_) gpu_errors_->begin_round();
  details_.go_on(round);
}

void WorkerTalk::close() {
  timers_.reset();
  socket_.reset();
  observer_.clear();
}

WorkerPaths WorkerTalk::paths(int local_rank) const {
  return {details_.error_file(round_, local_rank), socket_ ? socket_->path() : "",
          timers_ ? timers_->path() : "", observer_};
}

void WorkerTalk::heard(int local_rank, const WorkerLine& line) {
  membership::WorkerRequest request;
  request.round = round_;
  request.global_rank = ranks_.of(local_rank);
  if (const auto* exclude = variants::get_if<ExcludeNode>(&line)) {
    request.reason = exclude->reason;
  } else if (const auto* stop = variants::get_if<StopJob>(&line)) {
    request.kind = membership::WorkerRequest::Kind::kStopJob;
    request.reason = stop->reason;
    request.exit_code = stop->exit_code;
  } else {
    if (const auto* first = variants::get_if<FirstStep>(&line)) first_step_done(local_rank, *first);
    if (const auto* failed = variants::get_if<OperationFailed>(&line)) {
      details_.operation_failed(local_rank, *failed);
      if (is_worth_recording(*failed)) say_(event::RecordsWanted{round_});
    }
    if (const auto* recorded = variants::get_if<Recorded>(&line)) {
      details_.recorded(local_rank, recorded->file);
    }
    if (variants::holds_alternative<AsksToRecover>(line)) recovery_asked_();
    if (const auto* hello = variants::get_if<Hello>(&line)) {
      frameworks_[local_rank] = hello->framework;
    }
    return;
  }
  say_(event::WorkerAsks{std::move(request)});
}

void WorkerTalk::first_step_done(int local_rank, const FirstStep& first) {
  first_steps_[local_rank] = first;
  const auto num_ranks = ranks_.left.empty()
                             ? static_cast<std::size_t>(options_.environment.num_workers)
                             : ranks_.left.size();
  if (first_steps_.size() != num_ranks) return;
  membership::FirstStep of_node{round_, first.step};  // 0 if one of them has no number
  for (const auto& [rank, each] : first_steps_) {
    of_node.step = std::min(of_node.step, each.step);
    of_node.connecting_us = std::max(of_node.connecting_us, each.connecting_us);
  }
  say_(event::FirstStepDone{of_node});
}

std::optional<ProgressWords> WorkerTalk::read_page(int local_rank) const {
  if (!socket_ || local_rank >= pages_.num_workers()) return std::nullopt;
  const ProgressSample page = pages_.read(local_rank);
  if (!page.connected) return std::nullopt;
  return static_cast<const ProgressWords&>(page);
}

std::optional<ProgressWords> WorkerTalk::read_progress(int local_rank) const {
  if (!socket_ || local_rank >= pages_.num_workers()) return std::nullopt;
  auto told = read_page(local_rank);
  const auto seen = pages_.read_seen(local_rank);
  if (!told || !seen) return seen ? seen : told;
  told->gpu_peak_bytes = seen->gpu_peak_bytes;
  told->skipped_steps = seen->skipped_steps;
  told->seen_collective = seen->seen_collective;
  if (told->step > 0) return told;
  // The program may report its losses or its phase all the same.
  told->step = seen->step;
  told->steps_done = seen->steps_done;
  if (!told->steps) told->steps = seen->steps;
  if (told->samples == 0) told->samples = seen->samples;
  if (told->num_reports == 0) {
    told->num_reports = seen->num_reports;
    told->loss_bits = seen->loss_bits;
  }
  if (told->phase == WorkPhase::kStartUp) told->phase = seen->phase;
  return told;
}

std::string WorkerTalk::framework(int local_rank) const {
  const auto found = frameworks_.find(local_rank);
  return found == frameworks_.end() ? "" : found->second;
}

std::vector<CommunicatorState> WorkerTalk::communicators(int local_rank) const {
  if (!socket_ || local_rank < 0 || local_rank >= pages_.num_workers()) return {};
  return pages_.communicators(local_rank);
}

void WorkerTalk::read_pending() {
  if (socket_) socket_->read_pending();
}

void WorkerTalk::explain(membership::WorkerFailure& failure) {
  read_pending();
  if (timers_ && failure.note.empty()) failure.note = timers_->reason(failure.pid);
  if (gpu_errors_) failure.gpu_errors = gpu_errors_->of_round();
  details_.add_to(failure, round_, communicators(failure.local_rank));
}

void WorkerTalk::ask_for_records() {
  if (socket_) socket_->ask_for_records();
}

void WorkerTalk::when_recorded(std::function<void()> call) {
  if (socket_) return socket_->when_recorded(std::move(call));
  if (call) call();
}

}  // namespace ddprun::agent
