// SPDX-License-Identifier: Apache-2.0
#include "agent/node_agent.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <utility>

#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log_level.h"
#include "common/peer_user.h"
#include "common/process_facts.h"
#include "common/socket.h"
#include "common/text.h"

namespace ddprun::agent {

namespace event = membership::agent_event;
namespace action = membership::agent_action;

namespace {

UniqueFd duplicate(const UniqueFd& fd) {
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!copy) throw_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
  return copy;
}

UniqueFd listen_anywhere(std::uint16_t port) {
  try {
    return listen_on(resolve({.host = "::", .port = port}).front());  // IPv4 too
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kSystem) throw;  // no IPv6 here
    return listen_on(resolve({.host = "0.0.0.0", .port = port}).front());
  }
}

// The driver needs up to seconds to take back what a killed process had on a GPU.
constexpr std::chrono::milliseconds kGpuMemoryLimit{5'000};
constexpr std::chrono::milliseconds kPagesInterval{1'000};      // where nothing else is looked at
constexpr std::chrono::milliseconds kFarewellAfterLoss{3'000};  // a cut-off node kills in less

// `Overloaded{…}` makes one visitor of several lambdas.
template <typename... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <typename... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace

RoundStore::RoundStore(boost::asio::io_context& io, std::function<void(std::string)> send)
    : io_(io), send_(std::move(send)), patience_(io) {}
RoundStore::~RoundStore() = default;

std::uint16_t RoundStore::bind(const std::string& address, std::uint16_t port) {
  listener_.reset();
  if (send_ && !next_proxy_) {
    if (!peer_users_are_known()) {
      throw Error(ErrorCode::kUnavailable,
                  "the kernel does not say whose a connection is (sock_diag(7)), so the workers' "
                  "store could not be kept from other users here: load its modules inet_diag and "
                  "tcp_diag, or give --store=direct, where there is no token and no TLS");
    }
    store::StoreServerOptions options;
    options.name = "the store's proxy";
    options.only_user = ::geteuid();
    next_proxy_ = std::make_unique<store::StoreProxy>(io_, std::move(options), send_);
  }
  if (!next_server_ && !send_) {
    store::StoreServerOptions options;
    options.name = "the round's store";
    next_server_ = std::make_unique<store::StoreServer>(io_, std::move(options));
  }
  if (port != 0 && port == fixed_port_) {
    listener_ = duplicate(fixed_listener_);
    return port;
  }
  listener_ = address.empty() ? listen_anywhere(port)
                              : listen_on(resolve({.host = address, .port = port}).front());
  if (port != 0) {
    fixed_listener_ = duplicate(listener_);
    fixed_port_ = port;
  }
  return local_address(listener_.get()).port();
}

void RoundStore::serve(std::uint64_t round, bool is_for_loopback) {
  round_ = round;
  if (send_) {
    proxy_ = std::move(next_proxy_);
    proxy_->serve(round, std::move(listener_));
    if (is_linked_) proxy_->linked();
    return;
  }
  server_ = std::move(next_server_);
  server_->listen(std::move(listener_), is_for_loopback);
}

void RoundStore::linked() {
  is_linked_ = true;
  if (proxy_) proxy_->linked();
}

void RoundStore::unlinked() {
  is_linked_ = false;
  if (proxy_) proxy_->unlinked();
}

void RoundStore::received(std::string_view message) {
  if (proxy_) proxy_->received(message);
}

void RoundStore::when_unused(std::chrono::milliseconds limit, std::function<void()> unused) {
  unused_ = std::move(unused);
  const auto say = [this] {
    patience_.cancel();
    if (unused_) std::exchange(unused_, nullptr)();
  };
  // A proxy is of use to this node's workers alone, and they have gone.
  patience_.expires_after(server_ ? limit : std::chrono::milliseconds{0});
  patience_.async_wait([say](const boost::system::error_code& error) {
    if (!error) say();
  });
  if (server_) server_->when_unused(say);
}

void RoundStore::close(std::uint64_t round) {
  if (round != round_) return;
  server_.reset();
  proxy_.reset();
}

NodeAgent::NodeAgent(boost::asio::io_context& io, Console& console, NodeAgentOptions options,
                     NodeAgentEvents events)
    : console_(console),
      io_(io),
      options_(std::move(options)),
      events_(std::move(events)),
      runner_(options_.machine, {[] { return Clock::now(); },
                                 [this](const membership::AgentAction& todo) { perform(todo); },
                                 [this](std::optional<Clock::time_point> at) { wake_at(at); }}),
      link_(
          io, options_.connect_to,
          [this](const membership::AgentEvent& link_event) { heard(link_event); },
          [this](const std::string& why) {
            if (!taken_in_ && events_.unreached) events_.unreached(why);
          },
          options_.security),
      store_(io, store_sender()),
      failure_details_(options_.environment.num_workers,
                       options_.workers.output.has_files() ? &console.log_writer() : nullptr),
      timer_(io),
      node_monitor_(io, {.gpus_program = helper_program("ddprun-gpus")},
                    [this](membership::NodeReport report) { read_node(std::move(report)); }) {
  link_.on_binary([this](std::string_view message) { store_.received(message); });
}

NodeAgent::~NodeAgent() = default;

std::function<void(std::string)> NodeAgent::store_sender() {
  if (options_.machine.join.settings.store != membership::StoreMode::kProxy) return nullptr;
  return [this](std::string message) { link_.send_binary(std::move(message)); };
}

void NodeAgent::start(const std::string& unfit) {
  unfit_ = unfit;
  waiting_since_ = Clock::now();
  node_monitor_.start();
  boost::asio::post(io_, [this] { handle(event::Start{unfit_}); });
}

// `directory` is empty: none can be made.
void NodeAgent::open_socket(std::uint64_t round, const std::string& directory) {
  if (directory.empty()) return;
  try {
    pages_.begin_round(round, options_.environment.num_workers);
    socket_ = std::make_unique<AgentSocket>(io_, pages_, directory, socket_events());
  } catch (const Error& error) {
    events_.tell(LogLevel::kWarning, concat("workers can't report their progress: ", error.what()));
  }
}

void NodeAgent::open_timers(const std::string& directory) {
  timers_.reset();
  TimerPipeOptions options;
  options.path = TimerPipe::path_of(options_.environment.inherited, directory);
  if (options.path.empty()) return;
  options.global_rank = [this](int local_rank) { return ranks_.of(local_rank); };
  options.workers = [this] { return workers_ ? workers_->pids() : std::vector<pid_t>(); };
  options.tell = events_.tell;
  try {
    timers_ = TimerPipe::open(io_, std::move(options));
  } catch (const Error& error) {
    events_.tell(LogLevel::kWarning, concat("workers have no timers: ", error.what()));
  }
}

void NodeAgent::on_worker_line(std::uint64_t round, int local_rank, const WorkerLine& line) {
  membership::WorkerRequest request;
  request.round = round;
  request.global_rank = ranks_.of(local_rank);
  if (const auto* exclude = variants::get_if<ExcludeNode>(&line)) {
    request.reason = exclude->reason;
  } else if (const auto* stop = variants::get_if<StopJob>(&line)) {
    request.kind = membership::WorkerRequest::Kind::kStopJob;
    request.reason = stop->reason;
    request.exit_code = stop->exit_code;
  } else {
    if (const auto* first = variants::get_if<FirstStep>(&line))
      on_first_step(round, local_rank, *first);
    if (const auto* failed = variants::get_if<OperationFailed>(&line)) {
      failure_details_.operation_failed(local_rank, *failed);
      if (is_worth_recording(*failed)) handle(event::RecordsWanted{round});
    }
    if (const auto* recorded = variants::get_if<Recorded>(&line)) {
      failure_details_.recorded(local_rank, recorded->file);
    }
    if (variants::holds_alternative<AsksToRecover>(line)) kept_if_all_ask();
    return;
  }
  handle(event::WorkerAsks{std::move(request)});
}

void NodeAgent::on_first_step(std::uint64_t round, int local_rank, const FirstStep& first) {
  first_steps_[local_rank] = first;
  const auto num_ranks = ranks_.left.empty()
                             ? static_cast<std::size_t>(options_.environment.num_workers)
                             : ranks_.left.size();
  if (first_steps_.size() != num_ranks) return;
  membership::FirstStep of_node{round, first.step};  // 0, where one of them has no number
  for (const auto& [rank, each] : first_steps_) {
    of_node.step = std::min(of_node.step, each.step);
    of_node.connecting_us = std::max(of_node.connecting_us, each.connecting_us);
  }
  handle(event::FirstStepDone{of_node});
}

void NodeAgent::signal(int number, bool is_users) {
  if (farewell_) return std::exchange(farewell_, nullptr)();
  if (gpus_) gpus_->give_up();
  handle(event::Signal{number, is_users});
}

void NodeAgent::abandon(const std::string& reason, int number) {
  if (farewell_) return std::exchange(farewell_, nullptr)();
  if (gpus_) gpus_->give_up();
  handle(event::Abandoned{reason, number});
}

void NodeAgent::warn(membership::Preempted warning) { handle(event::Warned{std::move(warning)}); }

// Workers of other nodes may be in their grace, and may write a checkpoint that needs the store.
void NodeAgent::leave(const action::Exit& exit) {
  parked_.reset();  // its warden kills them
  if (exit.verdict.exit_code == 0) return events_.exited(exit);
  farewell_ = [this, exit] { events_.exited(exit); };
  auto limit = options_.machine.join.timeouts.stop_grace;
  if (exit.verdict.exit_code == static_cast<int>(ExitCode::kRetryable)) {
    limit = std::min(limit, kFarewellAfterLoss);  // a lost node's connections may never end
  }
  store_.when_unused(limit, [this] {
    if (farewell_) std::exchange(farewell_, nullptr)();
  });
}

void NodeAgent::handle(membership::AgentEvent event) { runner_.handle(std::move(event)); }

void NodeAgent::heard(const membership::AgentEvent& link_event) {
  reached_ = reached_ || variants::holds_alternative<event::LinkUp>(link_event);
  bool is_welcome = false;
  if (variants::holds_alternative<event::LinkDown>(link_event)) {
    linked_ = false;
    store_.unlinked();
  }
  if (const auto* heard = variants::get_if<event::LinkMessage>(&link_event)) {
    const auto& message = heard->envelope.message;
    const auto* refused = variants::get_if<membership::Refused>(&message);
    is_welcome = variants::holds_alternative<membership::Welcome>(message);
    taken_in_ |= is_welcome;
    linked_ |= is_welcome;
    if (refused != nullptr && refused->again) taken_in_ = round_ != 0;
  }
  handle(link_event);
  if (is_welcome) store_.linked();
}

void NodeAgent::perform(const membership::AgentAction& todo) {
  const Overloaded carry_out{
      [this](const action::Connect& connect) { link_.connect(connect.timeout); },
      [this](const action::CloseLink&) { link_.close(); },
      [this](const action::Send& send) { link_.send(send.envelope); },
      [this](const action::SetKeepAlive& keep) {
        link_.set_keep_alive(keep.timeout, keep.interval);
      },
      [this](const action::BindStore& bind) {
        try {
          handle(event::StoreBound{store_.bind(bind.address, bind.port)});
        } catch (const Error& error) {
          handle(event::StoreBindFailed{error.what()});
        }
      },
      [this](const action::ServeStore& serve) { store_.serve(serve.round, serve.is_for_loopback); },
      [this](const action::CloseStore& close) {
        // At the end it stays for other nodes' workers: leave() closes it.
        if (!runner_.machine().exited()) store_.close(close.round);
      },
      [this](const action::Spawn& start) { spawn(start.round); },
      [this](const action::Prewarm&) { prewarm(); },
      [this](const action::Lease& lease) {
        if (workers_) workers_->lease(lease.until);
      },
      [this](const action::RequestStop& request) {
        leave_before_ = Clock::now() + request.notice;
        leave_signal_ = request.signal_number != 0 ? request.signal_number : SIGUSR1;
        ask_to_leave();
      },
      [this](const action::StopWorkers& stop) { stop_workers(stop); },
      [this](const action::RoundOver& over) {
        if (events_.round_over) events_.round_over(over);
      },
      [this](const action::KeepWorkers&) { keep_workers(); },
      [this](const action::GoOn& next) { go_on(next.round); },
      [this](const action::Record&) {
        if (socket_) socket_->ask_for_records();
      },
      [this](const action::Inspect& inspect) {
        if (socket_) socket_->ask_for_records();
        if (monitor_) monitor_->inspect(inspect.inquiry);
      },
      [this](const action::ReadTail& wanted) { read_tail(wanted); },
      [this](const action::Tell& tell) { events_.tell(tell.level, tell.text); },
      [this](const action::Exit& exit) {
        timer_.cancel();
        leave(exit);
      },
  };
  variants::visit(carry_out, todo);
}

AgentSocketEvents NodeAgent::socket_events() {
  AgentSocketEvents events;
  events.said = [this](int local_rank, const WorkerLine& line) {
    if (!parked_) on_worker_line(round_, local_rank, line);
  };
  events.tell = events_.tell;
  return events;
}

void NodeAgent::spawn(const membership::StartRound& round) {
  round_ = round.round;
  node_rank_ = round.node_rank;
  ranks_ = {round.first_global_rank};
  leave_before_.reset();
  stopping_ = false;
  count_round(false);
  if (refuse_if_unfit()) return;
  if (events_.round_began) events_.round_began(round);
  log_directory_ = begin_logs(round);
  if (!gpus_) gpus_ = GpuMemory::open(io_, helper_program("ddprun-gpus"));
  if (!parked_) return start_workers(round);
  if (place_parked(round)) return;
  spawn_later_ = round;
  parked_->dismiss();
}

// If this fails, the round runs all the same, and its output goes to the console.
std::string NodeAgent::begin_logs(const membership::StartRound& round) {
  if (!options_.logs) return "";
  try {
    return begin_attempt(console_.log_writer(), options_.logs,
                         static_cast<int>(round.restart_count), options_.environment.num_workers);
  } catch (const Error& error) {
    events_.tell(LogLevel::kWarning, concat("no log files of this round: ", error.what(),
                                            "; its output goes to the console"));
    return "";
  }
}

// A spare may have waited for days. The rendezvous then stops the round, in which nothing runs
// here.
bool NodeAgent::refuse_if_unfit() {
  if (!undead_.empty()) {
    refuse("processes of an earlier round can't be killed: " + undead_);
    return true;
  }
  if (!unfit_.empty()) {  // an old rendezvous doesn't heed what the join said
    refuse("its preflight failed: " + unfit_);
    return true;
  }
  if (!options_.needs) return false;
  auto problems = check_node(*options_.needs, gather_node_facts(*options_.needs));
  std::erase_if(problems,
                [](const NodeProblem& each) { return each.verdict == NodeVerdict::kSaid; });
  if (problems.empty()) return false;
  refuse("its preflight failed: " + to_text(problems));
  return true;
}

void NodeAgent::refuse(const std::string& reason) {
  workers_.reset();  // of the round before
  if (parked_) parked_->dismiss();
  membership::WorkerRequest request;
  request.round = round_;
  request.global_rank = membership::kAgentItself;
  request.reason = reason;
  handle(event::WorkerAsks{std::move(request)});
}

void NodeAgent::start_workers(const membership::StartRound& round) {
  socket_.reset();
  first_steps_.clear();
  WorkerGroupOptions group = options_.workers;
  if (!options_.socket_parent.empty()) {
    group.socket_directory = AgentSocket::new_directory(options_.socket_parent);
  }
  group.log_directory = log_directory_;
  const std::string directory = group.socket_directory;
  std::string problem;
  try {
    if (options_.cgroups) group.cgroup = options_.cgroups->begin_round();
  } catch (const Error& error) {
    problem = error.what();
  }
  const std::shared_ptr<const RoundCgroup> cgroup = group.cgroup;
  workers_ = std::make_unique<WorkerGroup>(io_, console_, std::move(group), round.node_rank,
                                           group_events(round.round));
  watch(round);
  try {
    if (!problem.empty()) throw Error(ErrorCode::kSystem, problem);
    workers_->launch_warden();  // first, so that it removes the directory if we are killed
    open_socket(round_, directory);
    failure_details_.begin_round(round_, log_directory_, socket_ ? directory : "", cgroup);
    open_timers(socket_ ? directory : "");
    workers_->start(worker_specs(round));
  } catch (const Error& error) {
    handle(event::WorkerFailed{round.round, failure_of(0, error.what()), Clock::now()});
  }
}

// The failure of a worker that could not run.
membership::WorkerFailure NodeAgent::failure_of(int local_rank, const std::string& note) const {
  membership::WorkerFailure failure;
  failure.global_rank = ranks_.of(local_rank);
  failure.local_rank = local_rank;
  failure.node_rank = node_rank_;
  failure.host = options_.machine.join.host;
  failure.exit_code = kExitNotExecutable;
  failure.note = note;
  return failure;
}

std::vector<WorkerSpec> NodeAgent::worker_specs(const membership::StartRound& round) const {
  std::vector<WorkerSpec> workers(static_cast<std::size_t>(options_.environment.num_workers));
  WorkerEnvironmentOptions environment = options_.environment;
  if (environment.network && round.num_nodes > 1) {  // the kernel is asked once
    environment.network = [found = environment.network(round.node_addr)](const std::string&) {
      return found;
    };
  }
  for (std::size_t i = 0; i < workers.size(); ++i) {
    const int local_rank = static_cast<int>(i);
    workers[i].global_rank = round.first_global_rank + local_rank;
    workers[i].local_rank = local_rank;
    workers[i].argv = worker_arguments(options_.command, local_rank);
    workers[i].environment =
        worker_environment(environment, round, local_rank,
                           {failure_details_.error_file(round.round, local_rank),
                            socket_ ? socket_->path() : "", timers_ ? timers_->path() : ""});
  }
  return workers;
}

void NodeAgent::watch(const membership::StartRound& round) {
  monitor_.reset();
  const std::uint64_t number = round.round;
  HangMonitorOptions options;
  options.limits = options_.hang_limits;
  options.num_workers = options_.environment.num_workers;
  options.ranks = ranks_;
  options.stacks_program = options_.stacks_program;
  options.gpus_program = helper_program("ddprun-gpus");
  options.pages_only = options_.machine.join.settings.hang_action == membership::HangAction::kOff;
  if (options.pages_only) options.interval = kPagesInterval;
  HangMonitorEvents events;
  events.read_page = [this](int local_rank) { return read_page(local_rank); };
  events.read_communicators = [this](int local_rank) { return communicators(local_rank); };
  events.pids = [this] { return workers_->pids(); };
  events.stalled = [this, number](membership::RankReport report) {
    handle(event::RankStalled{number, std::move(report)});
  };
  events.inspected = [this, number](std::uint64_t inquiry,
                                    std::vector<membership::RankReport> ranks) {
    handle(event::RanksInspected{number, inquiry, std::move(ranks)});
  };
  events.steps_timed = [this, number](std::vector<membership::RankStepTime> ranks,
                                      std::optional<membership::TrainingStatus> training) {
    event::StepsTimed timed{number, std::move(ranks), std::move(training)};
    if (timed.training) timed.monitor = take_node_report();
    handle(timed);
  };
  monitor_ = std::make_unique<HangMonitor>(io_, std::move(options), std::move(events));
  monitor_->start();
}

std::optional<ProgressWords> NodeAgent::read_page(int local_rank) const {
  if (!socket_ || local_rank >= pages_.num_workers()) return std::nullopt;
  const ProgressSample page = pages_.read(local_rank);
  if (!page.connected) return std::nullopt;
  return static_cast<const ProgressWords&>(page);
}

std::vector<CommunicatorState> NodeAgent::communicators(int local_rank) const {
  if (!socket_ || local_rank < 0 || local_rank >= pages_.num_workers()) return {};
  return pages_.communicators(local_rank);
}

void NodeAgent::ask_to_leave() {
  if (spawn_later_) return;  // their pages come with them
  pages_.request_stop(StopRequest::kPreemption, *leave_before_);
  if (workers_) workers_->ask_to_leave(leave_signal_);
}

void NodeAgent::stop_workers(const action::StopWorkers& stop) {
  monitor_.reset();
  keeping_ = waiting_in_place_ = false;
  stopping_ = true;
  if (parked_) {  // being dismissed for a round that is over already
    spawn_later_.reset();
    stop_later_ = true;
    return;
  }
  if (!workers_) return handle(event::WorkersGone{round_});
  const auto stop_now = [this, stop] {
    if (workers_) workers_->stop(stop.grace, stop.signal_number);
  };
  if (socket_) socket_->when_recorded(stop.after_records ? stop_now : std::function<void()>());
  if (!socket_ || !stop.after_records) stop_now();
}

WorkerGroupEvents NodeAgent::group_events(std::uint64_t round) {
  WorkerGroupEvents events;
  events.all_running = [this, round] { all_run(round); };
  events.worker_failed = [this, round](membership::WorkerFailure failure, Clock::time_point at) {
    if (socket_) socket_->read_pending();  // what it said before it ended comes first
    if (timers_ && failure.note.empty()) failure.note = timers_->reason(failure.pid);
    failure_details_.add_to(failure, round, communicators(failure.local_rank));
    count_failure(failure);
    if (events_.worker_failed) events_.worker_failed(failure);
    if (waiting_in_place_) late_failure_ = failure;
    handle(event::WorkerFailed{round, failure, at});
    not_kept(concat("rank ", failure.global_rank, " has ended, too"));
  };
  events.ended = [this](const WorkerExit& exit) { count_exit(exit); };
  events.all_succeeded = [this, round] {
    if (socket_) socket_->read_pending();
    handle(event::WorkersSucceeded{round});
    not_kept("they have finished");
  };
  events.fenced = [this, round] { handle(event::WorkersFenced{round}); };
  events.all_left = [this, round] { handle(event::WorkersLeft{round}); };
  events.given_up = [this](const std::string& who) {
    undead_ = who;
    events_.tell(LogLevel::kError,
                 concat("these processes were killed and don't end, ddprun goes on without them; "
                        "this node takes no further round: ",
                        who));
  };
  events.all_gone = [this, round] {
    timers_.reset();
    tell_progress();
    socket_.reset();
    workers_gone(round);
  };
  return events;
}

void NodeAgent::all_run(std::uint64_t round) {
  const std::vector<pid_t> pids = workers_->pids();
  failure_details_.workers_run(pids);
  if (events_.workers_run) events_.workers_run(pids);
  handle(event::WorkersRunning{round});
}

// The GPU memory of the ended workers has to be free before others start.
void NodeAgent::workers_gone(std::uint64_t round) {
  waiting_since_ = Clock::now();
  if (events_.workers_gone) events_.workers_gone();
  if (!gpus_) return handle(event::WorkersGone{round, pages_.last_step()});
  gpus_->when_freed(kGpuMemoryLimit, [this, round](const std::string& note) {
    if (!note.empty()) events_.tell(LogLevel::kWarning, note);
    handle(event::WorkersGone{round, pages_.last_step()});
  });
}

void NodeAgent::wake_at(std::optional<Clock::time_point> at) {
  if (!at) {
    timer_.cancel();
    return;
  }
  timer_.expires_at(*at);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) handle(event::Timer{});
  });
}

// ---- Workers that go on in place when one of them has died (docs/inplace.md) ----

void NodeAgent::keep_workers() {
  monitor_.reset();
  late_failure_.reset();
  keeping_ = true;
  if (socket_) socket_->read_pending();
  kept_if_all_ask();
}

// A worker that has not offered it will never ask: most programs know nothing of it.
void NodeAgent::kept_if_all_ask() {
  if (!keeping_) return;
  if (!workers_ || !socket_) return not_kept("they have no socket to ask on");
  if (leave_before_) return not_kept("they are asked to leave");
  if (workers_->any_ended_well()) return not_kept("one has finished");
  const std::vector<pid_t> pids = workers_->pids();
  int count = 0, num_asking = 0;
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] == 0) continue;
    const int local_rank = static_cast<int>(i);
    if (!socket_->offers_recovery(local_rank)) {
      return not_kept(concat("rank ", ranks_.of(local_rank), " (pid ", pids[i],
                             ") has not offered it (Session::offer_recovery)"));
    }
    ++count;
    num_asking += socket_->asks_to_recover(local_rank) ? 1 : 0;
  }
  if (count == 0) return not_kept("none is left on this node");
  pages_.tell_peer_lost();         // NCCL shows it only to some, or to nobody
  if (num_asking < count) return;  // the next one that asks comes here again
  keeping_ = false;
  waiting_in_place_ = true;
  waiting_since_ = Clock::now();
  tell_progress();
  if (events_.workers_gone) events_.workers_gone();
  handle(event::WorkersKept{round_, count, pages_.last_step()});
}

void NodeAgent::not_kept(const std::string& why) {
  if (std::exchange(keeping_, false)) handle(event::WorkersNotKept{round_, why});
}

// Socket, output and log files stay; pages are those of the new round.
void NodeAgent::go_on(const membership::StartRound& round) {
  waiting_in_place_ = false;
  round_ = round.round;
  node_rank_ = round.node_rank;
  ranks_ = {round.first_global_rank};
  first_steps_.clear();
  count_round(true);
  const std::vector<pid_t> pids = workers_->pids();
  for (std::size_t i = 0; i < pids.size(); ++i) {
    if (pids[i] != 0) ranks_.left.push_back(static_cast<int>(i));
  }
  if (events_.round_began) events_.round_began(round);
  failure_details_.go_on(round.round);
  workers_->go_on(round.node_rank, round.first_global_rank, group_events(round.round));
  std::string problem;
  int at_fault = ranks_.left.empty() ? 0 : ranks_.left.front();
  try {
    pages_.begin_round(round.round, options_.environment.num_workers);
  } catch (const Error& error) {
    problem = error.what();
  }
  const int num_left = static_cast<int>(ranks_.left.size());
  for (int i = 0; i < num_left && problem.empty() && !late_failure_; ++i) {
    const int local_rank = ranks_.left[static_cast<std::size_t>(i)];
    const auto place = place_variables(options_.environment, round, i, num_left, local_rank);
    if (!socket_->go_on(local_rank, place)) {
      problem = concat("rank ", ranks_.of(local_rank), " does not wait for it any more");
      at_fault = local_rank;
    }
  }
  socket_->end_old_round();
  if (problem.empty() && !late_failure_) {
    watch(round);
    return all_run(round.round);
  }
  const std::string note = "could not go on in place: " + problem;
  handle(event::WorkerFailed{
      round.round, late_failure_ ? *late_failure_ : failure_of(at_fault, note), Clock::now()});
}

// ---- What it counts and reads of itself and its workers (docs/metrics.md, docs/events.md) ----

void NodeAgent::count_round(bool in_place) {
  const Clock::time_point now = Clock::now();
  if (const auto since = std::exchange(waiting_since_, std::nullopt)) {
    counts_.waits.observe(std::chrono::duration<double>(now - *since).count());
  }
  const bool failed = std::exchange(failed_here_, false);
  if (!in_place && counts_.rounds > 0) {
    ++(failed ? counts_.restarts_after_failure : counts_.restarts_otherwise);
  }
  ++counts_.rounds;
}

void NodeAgent::count_failure(const membership::WorkerFailure& failure) {
  failed_here_ = true;
  count_exit(exit_of(failure, !failure.out_of_memory.empty() ? ExitKind::kOutOfMemory
                              : failure.signal_number != 0   ? ExitKind::kSignal
                                                             : ExitKind::kError));
}

void NodeAgent::count_exit(const WorkerExit& exit) {
  ++counts_.of(exit.kind);
  if (events_.worker_ended) events_.worker_ended(exit);
}

// How the node is and how far its ranks are is one message where both are said: a rendezvous of a
// thousand nodes has half as many to read.
std::optional<membership::NodeReport> NodeAgent::take_node_report() {
  auto report = node_monitor_.take_report();
  if (report) tell_node(*report);
  return report;
}

void NodeAgent::read_node(membership::NodeReport report) {
  tell_node(report);
  handle(membership::agent_event::NodeRead{std::move(report)});
}

void NodeAgent::tell_node(const membership::NodeReport& report) const {
  if (events_.node_read) events_.node_read(report);
  tell_progress();
}

void NodeAgent::tell_progress() const {
  if (!events_.progressed) return;
  std::vector<RankProgress> ranks;
  for (int i = 0; i < pages_.num_workers(); ++i) {
    if (const auto words = read_page(i)) ranks.push_back({ranks_.of(i), *words});
  }
  if (!ranks.empty()) events_.progressed(ranks);
}

AgentMetrics NodeAgent::metrics() {
  AgentMetrics all;
  all.job = options_.machine.join.run_id;
  all.connected = linked_;
  all.node_rank = node_rank_;
  all.round = round_;
  std::vector<pid_t> pids;
  if (workers_) pids = workers_->pids();
  const auto num = pids.size() - static_cast<std::size_t>(std::count(pids.begin(), pids.end(), 0));
  (stopping_ ? all.num_stopping : all.num_running) = num;
  if (parked_) all.num_parked = static_cast<std::size_t>(options_.environment.num_workers);
  all.counts = counts_;
  all.node = node_monitor_.read();
  all.uses = worker_uses_.look(pids, Clock::now());
  for (std::size_t i = 0; i < all.uses.size(); ++i) {
    all.pages.push_back(pids[i] != 0 ? read_page(static_cast<int>(i)) : std::nullopt);
  }
  all.process = metrics::own_use();
  return all;
}

// ---- What a rank of this node wrote last, for who looks at it on the status page ----

static_assert(OutputTail::kNumLines == membership::kMaxTailLines);

void NodeAgent::read_tail(const membership::agent_action::ReadTail& wanted) {
  const auto answer = [this, request = wanted.request](LastOutput last) {
    membership::Tail tail{request, std::move(last.lines), std::move(last.note)};
    handle(membership::agent_event::TailRead{std::move(tail)});
  };
  if (!options_.workers.output.is_watched) {
    return answer({{},
                   concat("switched off for this job: ddprun on ", host_name(),
                          " runs with --watch-output=off")});
  }
  const bool is_here =
      workers_ && wanted.round == round_ && workers_->look(wanted.global_rank, answer);
  if (is_here) return;
  answer({{},
          concat("rank ", wanted.global_rank, " of round ", wanted.round,
                 " is not, or not yet, on ", host_name())});
}

}  // namespace ddprun::agent
