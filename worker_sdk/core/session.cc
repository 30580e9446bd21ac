// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/core/session.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "common/clock.h"
#include "common/env_names.h"
#include "common/environment.h"
#include "common/error.h"
#include "common/log.h"
#include "rendezvous/store/prefix_store.h"
#include "rendezvous/store/store_timeout.h"
#include "rendezvous/store/tcp_store.h"
#include "worker_sdk/core/agent_channel.h"
#include "worker_sdk/core/backend_agreement.h"
#include "worker_sdk/core/checked_communicator.h"
#include "worker_sdk/core/flight_recorder.h"
#include "worker_sdk/core/host/host_communicator.h"
#include "worker_sdk/core/nccl/comm_setup.h"
#include "worker_sdk/core/nccl/device_identity.h"
#include "worker_sdk/core/nccl/errors.h"
#include "worker_sdk/core/nccl/loader.h"
#include "worker_sdk/core/nccl/nccl_communicator.h"
#include "worker_sdk/core/record_keeper.h"
#include "worker_sdk/core/stop_boundary.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;

// Second connections are made after something went wrong, when there is little time.
constexpr milliseconds kSideConnectTimeout{5'000};
constexpr milliseconds kAgentTimeout{5'000};
constexpr milliseconds kAgentRetryInterval{2'000};
// Longer than the agents wait for their workers, and the rendezvous for the agents.
constexpr std::chrono::seconds kRecoveryTimeout{30};
constexpr int kKeepWhatIsSet = 0, kReplace = 1;  // setenv's last argument

std::unique_ptr<store::Store> connect_to_store(const Endpoint& master, milliseconds timeout) {
  store::TcpStoreOptions options;
  options.timeout = timeout;
  return std::make_unique<store::TcpStore>(master, options);
}

[[noreturn]] void give_up(ErrorCode code, const std::string& why) {
  throw Error(code, "can't go on in place: " + why +
                        "; this process must exit with a failure, to be started again");
}

}  // namespace

// A worker's exchange with its agent: progress, the flight recorder, requests. Used on the loop's
// thread.
class AgentContact {
 public:
  // Training goes on without an agent: if it refuses, or doesn't answer within 5 s, there is a
  // warning. A late answer is noticed at the beginning of a step. `progress` outlives this object.
  AgentContact(const WorkerEnv& env, WorkerProgress& progress)
      : env_(env), progress_(progress), recorder_(env, progress) {
    if (env_.agent_socket.empty()) return;
    try {
      if (join(Deadline::after(kAgentTimeout))) return;
      log_warning("rank ", env_.rank, ": no progress is reported: the agent does not answer");
    } catch (const Error& error) {
      log_warning("rank ", env_.rank, ": no progress is reported: ", error.what());
      if (std::exchange(greeted_, nullptr)) return;  // the agent refused
    }
    next_try_ = Clock::now() + kAgentRetryInterval;
    progress_.on_begin([this] { return try_again(); });
  }

  ~AgentContact() { progress_.on_begin(nullptr); }

  // Returns null if there is no agent, or none that answered.
  AgentChannel* channel() { return agent_.get(); }

 private:
  // Returns false if there is no answer yet. Throws AgentChannel's errors; greeted_ is set if the
  // agent refuses.
  bool join(Deadline deadline) {
    if (!greeted_) {
      greeted_ = std::make_unique<AgentChannel>(env_.agent_socket, env_.round, env_.local_rank);
    }
    if (!greeted_->await_welcome(deadline)) return false;
    progress_.move_to(greeted_->page());
    agent_ = std::move(greeted_);
    recorder_.serve(agent_);
    progress_.on_first_step([agent = agent_](std::uint64_t step, std::chrono::nanoseconds spent) {
      agent->first_step(step, spent);
    });
    return true;
  }

  // Never waits. Returns false if no more tries are needed.
  bool try_again() {
    if (Clock::now() < next_try_) return true;
    next_try_ = Clock::now() + kAgentRetryInterval;
    try {
      return !join(Deadline::after(std::chrono::milliseconds(0)));
    } catch (const Error&) {
      return std::exchange(greeted_, nullptr) == nullptr;
    }
  }

  // Constant after construction.
  const WorkerEnv& env_;
  WorkerProgress& progress_;

  RecordKeeper recorder_;
  // Shared with the recorder, and with the progress, which says when the first step is done.
  std::shared_ptr<AgentChannel> agent_;
  std::unique_ptr<AgentChannel> greeted_;  // a channel whose agent hasn't answered yet
  Clock::time_point next_try_{};
};

NcclLibraries load_nccl_libraries() {
  NcclLibraries libraries;
  libraries.cuda = nccl::load_cuda();
  nccl::device_identity(*libraries.cuda, 0);  // throws without a GPU: saves a library of 200 MB
  libraries.nccl = nccl::load_nccl();
  return libraries;
}

// A spare's worker that runs before its node has a place in a round (--prewarm) has DDPRUN_ROUND=0.
void Session::wait_for_place() {
  const char* round = std::getenv(env::kRound);
  const char* agent = std::getenv(env::kAgentSocket);
  const char* local_rank = std::getenv(env::kTrueLocalRank);
  if (!local_rank) local_rank = std::getenv(env::kLocalRank);
  if (!round || std::string_view(round) != "0" || !agent || !local_rank) return;
  AgentChannel channel(agent, 0, std::atoi(local_rank), Deadline::after(kAgentTimeout));
  for (const auto& [name, value] : from_strings(channel.wait_for_place())) {
    ::setenv(name.c_str(), value.c_str(), kReplace);
  }
}

std::unique_ptr<Session> Session::from_env(const SessionOptions& options) {
  wait_for_place();
  WorkerEnv env = WorkerEnv::from_environment([](const char* name) { return std::getenv(name); });
  // Set here, before the program has threads: setenv is not safe beside a getenv.
  const std::string ras_address = nccl::ras_address(env.run_id, env.master);
  ::setenv(env::kNcclRasAddr, ras_address.c_str(), kKeepWhatIsSet);
  // With this, communicators of groups (Communicator::split) can't wait for each other in a circle.
  ::setenv(env::kNcclLaunchOrderImplicit, "1", kKeepWhatIsSet);
  // Otherwise nccl.conf could say 0, and load_nccl() refuses another value of the environment.
  ::setenv(env::kNcclCommBlocking, "1", kReplace);
  return connect(std::move(env), options);
}

std::unique_ptr<Session> Session::connect(WorkerEnv env, const SessionOptions& options) {
  // The first connection waits for a store that is starting; the later ones know that it runs.
  auto connect = [master = env.master, timeout = options.connect_timeout]() mutable {
    return connect_to_store(master, std::exchange(timeout, kSideConnectTimeout));
  };
  auto session = std::make_unique<Session>(std::move(env), std::move(connect), options.nccl_loader);
  session->store_->set_timeout(options.store_timeout);
  session->options_ = options;
  return session;
}

Session::Session(WorkerEnv env, StoreFactory connect, NcclLoader loader)
    : env_(std::move(env)),
      connect_(std::move(connect)),
      loader_(std::move(loader)),
      round_prefix_("ddprun/" + std::to_string(env_.round) + "/"),
      store_(connect_()),
      user_store_(std::make_unique<store::PrefixStore>(round_prefix_ + "user", store_)),
      progress_(std::make_shared<WorkerProgress>(static_cast<std::size_t>(env_.num_recorded))),
      stop_(std::make_unique<StopBoundary>(env_, connect_, *progress_)),
      agent_(std::make_unique<AgentContact>(env_, *progress_)) {}

Session::~Session() = default;

bool Session::should_stop(std::uint64_t step, const std::function<void()>& finish_device) {
  if (progress_->stop_request() != StopRequest::kNone) {
    if (finish_device) finish_device();
    progress_->end_step();
    if (stop_->reached(step)) {
      progress_->set_phase(ProgressPhase::kCheckpoint);
      return true;
    }
  }
  progress_->begin_step(step);
  return false;
}

bool Session::exclude_node(std::string_view reason) {
  return agent_->channel() && agent_->channel()->exclude_node(reason);
}

bool Session::stop_job(std::string_view reason, int exit_code) {
  return agent_->channel() && agent_->channel()->stop_job(reason, exit_code);
}

std::unique_ptr<Communicator> Session::make_communicator(BackendChoice choice,
                                                         const CommunicatorOptions& options) {
  // The count is in the store, so a second Session of this worker, in this process or the next,
  // goes on where the first ended.
  const std::string count = concat(round_prefix_, "communicators/", env_.rank);
  const std::string prefix = concat(round_prefix_, "comm", store_->add(count, 1) - 1);
  BackendVerdict verdict;
  {
    const store::StoreTimeout limit(*store_, options.init_timeout);
    store::PrefixStore agreement(prefix + "/backend", store_);
    verdict = agree_on_backend(agreement, env_.world_size, offer_device(choice));
  }
  // All ranks are there, so the time from here on is the making itself.
  const auto made = [this, agreed = Clock::now()](std::unique_ptr<Communicator> communicator) {
    progress_->add_connecting(Clock::now() - agreed);
    return communicator;
  };
  if (verdict.kind == BackendVerdict::Kind::kNccl) {
    auto communicator = made(make_nccl(prefix + "/nccl/", options));
    if (!options.compare_calls && !env_.debug_collectives) return communicator;
    const std::size_t number = progress_->recorder().communicators().size() - 1;
    return make_checked_communicator(std::move(communicator), static_cast<std::uint32_t>(number),
                                     [&](const std::shared_ptr<WorkerProgress>& progress) {
                                       return make_host(prefix + "/compare/", options, progress);
                                     });
  }
  if (!verdict.why.empty() && env_.rank == 0) {
    // Machines without GPUs are meant to be so; an idle GPU is not.
    const bool idles = verdict.some_have_a_device || std::filesystem::exists("/dev/nvidiactl");
    log_message(idles ? LogLevel::kWarning : LogLevel::kInfo, verdict.why);
  }
  return made(make_host(prefix + "/host/", options, progress_));
}

DeviceOffer Session::offer_device(BackendChoice choice) {
  DeviceOffer offer;
  offer.rank = env_.rank;
  offer.choice = choice;
  if (choice == BackendChoice::kHost) return offer;
  try {
    if (!libraries_.cuda) libraries_ = loader_();
    std::string id = nccl::device_identity(*libraries_.cuda, env_.device);
    if (libraries_.check_device) libraries_.check_device(env_.device);
    constexpr int kTakesSlices = 23007;  // the first version that compares UUIDs, not bus ids
    if (libraries_.nccl->version() < kTakesSlices) {
      offer.gpu_id = nccl::gpu_identity(*libraries_.cuda, env_.device);
    }
    offer.device_id = std::move(id);
  } catch (const Error& error) {
    offer.reason = error.what();
  }
  return offer;
}

std::unique_ptr<Communicator> Session::make_host(const std::string& prefix,
                                                 const CommunicatorOptions& options,
                                                 const std::shared_ptr<WorkerProgress>& progress) {
  const host::HostCommunicatorOptions host_options{.rank = env_.rank,
                                                   .size = env_.world_size,
                                                   .node_rank = env_.node_rank,
                                                   .node_addr = env_.node_addr,
                                                   .key_prefix = prefix,
                                                   .timeout = options.timeout,
                                                   .init_timeout = options.init_timeout,
                                                   .progress = progress,
                                                   .split_store = store_};
  return host::make_host_communicator(*store_, host_options);
}

std::unique_ptr<Communicator> Session::make_nccl(const std::string& prefix,
                                                 const CommunicatorOptions& options) {
  nccl::NcclOptions nccl_options;
  nccl_options.rank = env_.rank;
  nccl_options.size = env_.world_size;
  nccl_options.device = env_.device;
  nccl_options.key_prefix = prefix;
  nccl_options.timeout = options.timeout;
  nccl_options.init_timeout = options.init_timeout;
  nccl_options.current_stream = options.current_stream;
  nccl_options.blocking_wait = options.blocking_wait;
  nccl_options.time_operations = env_.debug_times;
  nccl_options.config = options.nccl_config;
  nccl_options.connect_store = connect_;
  nccl_options.split_store = store_;
  nccl_options.progress = progress_;
  nccl::check_cuda(*libraries_.cuda, libraries_.cuda->set_device(env_.device), env_.rank,
                   "cudaSetDevice");
  return nccl::make_nccl_communicator(libraries_.cuda, libraries_.nccl, *store_, nccl_options);
}

bool Session::offer_recovery() {
  offers_recovery_ = env_.recovers_in_place && options_ && agent_->channel() &&
                     agent_->channel()->offers_recovery();
  return offers_recovery_;
}

std::unique_ptr<Session> Session::recover(std::unique_ptr<Communicator> failed) {
  if (failed) failed->abort("it leaves the round to go on in the next one");
  if (!may_recover()) give_up(ErrorCode::kUnsupported, "Session::offer_recovery was not taken");
  if (nccl::is_any_comm_left_behind()) {
    give_up(ErrorCode::kUnsupported, "NCCL has not come back from making a communicator");
  }
  WorkerEnv env;
  try {
    const Deadline deadline = Deadline::after(kRecoveryTimeout);
    AgentChannel agent(env_.agent_socket, static_cast<std::uint64_t>(env_.round), env_.local_rank,
                       deadline);
    const Environment place = from_strings(agent.ask_to_recover(deadline));
    env = WorkerEnv::from_environment([&](const char* name) -> const char* {
      const auto found = place.find(name);
      return found != place.end() ? found->second.c_str() : std::getenv(name);
    });
  } catch (const Error& error) {
    give_up(error.code(), error.what());
  }
  if (env.round <= env_.round) give_up(ErrorCode::kProtocol, "the agent gave the same round again");
  env.device = env_.device;
  std::unique_ptr<Session> next = connect(std::move(env), *options_);
  next->libraries_ = libraries_;
  if (!next->offer_recovery()) {
    log_warning("rank ", next->rank(), ": the agent took no further offer to go on in place");
  }
  failed.reset();  // its destructor waits for its abort
  return next;
}

}  // namespace ddprun
