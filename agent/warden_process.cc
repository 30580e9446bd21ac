// SPDX-License-Identifier: Apache-2.0
#include "agent/warden_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <tuple>
#include <utility>

#include "agent/warden/process_tree.h"
#include "common/child_process.h"
#include "common/error.h"
#include "common/fd_text.h"
#include "common/memory.h"
#include "common/process_facts.h"
#include "common/send_descriptors.h"
#include "common/text.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::agent {
namespace {

// Writes the text of a request, which may exceed a message, into a file in memory.
UniqueFd make_payload(const WardenSpawn& spawn, std::uint64_t* size) {
  std::string text;
  const auto add = [&](const std::string& part) { text.append(part.c_str(), part.size() + 1); };
  add(*spawn.working_directory);
  for (const auto& part : *spawn.argv) add(part);
  for (const auto& part : *spawn.environment) add(part);
  UniqueFd file = make_memory_file("ddprun-spawn");
  const int error = write_text(file.get(), text);
  if (error == EFBIG) {
    throw Error(ErrorCode::kSystem,
                concat("writing a worker's command, ", text.size(),
                       " bytes, to memory: ", errno_text(EFBIG), " (ulimit -f counts that, too)"));
  }
  if (error != 0) throw_system_error("writing a worker's command", error);
  *size = text.size();
  return file;
}

ChildCommand warden_command(const std::string& path, const std::string& directory, int socket,
                            const RoundCgroup* cgroup) {
  ChildCommand command;
  command.program = path;
  command.argv = {"ddprun-warden", directory};
  command.descriptors.assign(warden::kSocketFd, ChildCommand::kSame);
  command.descriptors.push_back(socket);
  if (cgroup != nullptr) {
    static_assert(warden::kCgroupFd == warden::kSocketFd + 1);
    command.descriptors.push_back(cgroup->fd());
    command.argv.push_back(cgroup->name());
  }
  command.own_session = true;
  command.keeps_ignored = true;
  // Blocks all signals from its first instruction on, so that none from a terminal or a scheduler
  // ends it.
  sigfillset(&command.blocked);
  return command;
}

std::shared_ptr<WatchedChild> start_warden(boost::asio::io_context& io, const ChildCommand& command,
                                           WatchedChild::Ended ended) {
  try {
    return WatchedChild::start(io, command, std::move(ended));
  } catch (const StartError& error) {
    const std::string what = "starting " + command.program;
    if (error.error_number() != EAGAIN) {
      throw_system_error(what + " (a part of ddprun)", error.error_number());
    }
    throw Error(ErrorCode::kSystem, what + ": " + errno_text(EAGAIN) +
                                        " (a limit of processes: ulimit -u, or the cgroup's "
                                        "pids.max)");
  }
}

// Orphans are rare: looking again is simpler than a pidfd on each process of a changing set.
constexpr std::chrono::milliseconds kInterval{2};

struct Found {
  std::vector<pid_t> pids;
};

warden::Visit choose(pid_t pid, void* context) {
  if (is_helper_process(pid) || ::getsid(pid) == ::getsid(0)) return warden::Visit::kPrune;
  static_cast<Found*>(context)->pids.push_back(pid);
  return warden::Visit::kSignal;
}

}  // namespace

std::string WardenProcess::default_path() { return helper_program("ddprun-warden"); }

std::shared_ptr<WardenProcess> WardenProcess::launch(boost::asio::io_context& io,
                                                     const std::string& path,
                                                     const std::string& directory, Events events,
                                                     const RoundCgroup* cgroup, WarmHelper* warm,
                                                     int num_warm) {
  UniqueFd ours, theirs;
  const auto make_pair = [&] {
    std::tie(ours, theirs) = make_socket_pair(SOCK_SEQPACKET | SOCK_NONBLOCK);
    // The warden's end blocks, so that its reports wait for a slow agent; the warden polls before
    // it reads.
    ::fcntl(theirs.get(), F_SETFL, 0);
  };
  make_pair();
  // If the warden is killed, its orphans become children of this process (OrphanSweep).
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::optional<Child> child;
  if (warm != nullptr) {
    const std::string cgroup_name = cgroup == nullptr ? "" : cgroup->name();
    child = warm->start_warden(path, {"ddprun-warden", directory, cgroup_name}, theirs.get(),
                               ours.get(), cgroup == nullptr ? -1 : cgroup->fd(), num_warm);
    if (!child) make_pair();  // a warden that starts late finds its peer gone, and ends
  }
  std::shared_ptr<WardenProcess> process(new WardenProcess(io, std::move(ours), std::move(events)));
  const auto ended = [weak = std::weak_ptr(process)](int wait_status) {
    if (const auto self = weak.lock()) self->on_process_end(wait_status);
  };
  process->child_ =
      child ? WatchedChild::adopt(io, std::move(*child), ended)
            : start_warden(io, warden_command(path, directory, theirs.get(), cgroup), ended);
  process->wait_for_stop();
  process->wait_readable();
  return process;
}

WardenProcess::WardenProcess(boost::asio::io_context& io, UniqueFd socket, Events events)
    : socket_(io, socket.release()), stops_(io, SIGCHLD), events_(std::move(events)) {}

WardenProcess::~WardenProcess() = default;

// The handler keeps this object until the process is reaped, also after abandon().
void WardenProcess::wait_for_stop() {
  stops_.async_wait([self = shared_from_this()](const boost::system::error_code& error, int) {
    if (error || !self->child_->is_running()) return;
    siginfo_t stopped{};
    const auto pid = static_cast<id_t>(self->pid());
    if (::waitid(P_PID, pid, &stopped, WSTOPPED | WNOHANG) == 0 && stopped.si_pid != 0) {
      self->resume();
    }
    self->wait_for_stop();
  });
}

void WardenProcess::spawn(const WardenSpawn& spawn) {
  warden::Request wanted;
  wanted.worker = spawn.worker;
  wanted.num_arguments = static_cast<std::uint32_t>(spawn.argv->size());
  wanted.num_variables = static_cast<std::uint32_t>(spawn.environment->size());
  wanted.max_open_files = store::initial_file_limit();
  static_assert(CpuSet::kMostCpus == warden::kCpuWords * 64);
  std::copy(spawn.cpus.words().begin(), spawn.cpus.words().end(), wanted.cpus);
  std::vector<UniqueFd> fds;
  fds.push_back(make_payload(spawn, &wanted.payload_bytes));
  std::vector<int> given = {spawn.stdin_fd, spawn.stdout_fd, spawn.stderr_fd};
  if (spawn.cgroup_fd >= 0) given.push_back(spawn.cgroup_fd);
  for (const int fd : given) {
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) throw_system_error("duplicating a worker's descriptor", errno);
    fds.push_back(std::move(copy));
  }
  post(wanted, std::move(fds));
}

void WardenProcess::post(const warden::Request& wanted, std::vector<UniqueFd> fds) {
  queue_.push_back({wanted, std::move(fds)});
  send_queued();
}

void WardenProcess::request(warden::RequestType type, int signal_number) {
  post({.type = type, .signal_number = signal_number});
  resume();
}

void WardenProcess::clear(pid_t pid) {
  post({.type = warden::RequestType::kClear, .ended_pid = pid});
  resume();
}

void WardenProcess::lease(std::optional<Clock::time_point> until) {
  using std::chrono::milliseconds;
  warden::Request wanted{.type = warden::RequestType::kLease};
  if (until) {
    // Clock is CLOCK_MONOTONIC; never 0, which means "for ever".
    const auto at = std::chrono::duration_cast<milliseconds>(until->time_since_epoch());
    wanted.lease_until_ms = std::max<std::int64_t>(at.count(), 1);
  }
  post(wanted);
  resume();  // a stopped warden can't enforce a lease
}

void WardenProcess::resume() {
  if (socket_.is_open()) child_->signal(SIGCONT);
}

void WardenProcess::send_queued() {
  while (!queue_.empty() && !waiting_writable_ && socket_.is_open()) {
    if (send_now(queue_.front())) {
      queue_.pop_front();
      continue;
    }
    waiting_writable_ = true;
    socket_.async_wait(boost::asio::posix::stream_descriptor::wait_write,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                         self->waiting_writable_ = false;
                         if (!error) self->send_queued();
                       });
  }
}

// Sends a request now. False: there is no room.
bool WardenProcess::send_now(const Outgoing& outgoing) {
  std::array<int, warden::kMostSpawnFds> fds{};
  for (std::size_t i = 0; i < outgoing.fds.size(); ++i) fds.at(i) = outgoing.fds[i].get();
  ssize_t size;
  do {
    size = send_descriptors(socket_.native_handle(), &outgoing.request, sizeof outgoing.request,
                            fds.data(), outgoing.fds.size());
  } while (size < 0 && errno == EINTR);
  // Any other error means that the warden is gone, and its pidfd says so.
  return size >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void WardenProcess::wait_readable() {
  when_readable(socket_, [self = shared_from_this()] { self->read_reports(); });
}

void WardenProcess::read_reports() {
  const auto self = shared_from_this();  // an event may release this object
  while (socket_.is_open()) {
    warden::Report report;
    const ssize_t size = ::recv(socket_.native_handle(), &report, sizeof report, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait_readable();
    if (size <= 0) return;  // its end follows by pidfd
    if (size != static_cast<ssize_t>(sizeof report) || report.version != warden::kVersion) {
      child_->signal(SIGKILL);  // another build: its workers die with it, and gone() follows
      return;
    }
    if (events_.report) events_.report(report);
  }
}

void WardenProcess::on_process_end(int wait_status) {
  if (socket_.is_open()) read_reports();  // reads what it said before it ended
  boost::system::error_code ignored;
  stops_.cancel(ignored);
  socket_.close(ignored);
  const auto events = std::move(events_);
  events_ = {};
  if (events.gone) events.gone(wait_status);
}

void WardenProcess::hang_up() {
  resume();
  queue_.clear();
  boost::system::error_code ignored;
  if (socket_.is_open()) socket_.close(ignored);
}

void WardenProcess::abandon() {
  events_ = {};
  hang_up();
}

std::shared_ptr<OrphanSweep> OrphanSweep::start(boost::asio::io_context& io,
                                                std::function<void()> done) {
  std::shared_ptr<OrphanSweep> sweep(new OrphanSweep(io, std::move(done)));
  sweep->step();
  return sweep;
}

OrphanSweep::OrphanSweep(boost::asio::io_context& io, std::function<void()> done)
    : timer_(io), done_(std::move(done)) {}

void OrphanSweep::step() {
  Found found;
  warden::signal_descendants(SIGKILL, &choose, &found);
  // Only this process' own children can be reaped; the others become its children when their
  // parents have ended.
  for (const pid_t pid : found.pids) ::waitpid(pid, nullptr, WNOHANG);
  run_after(timer_, found.pids.empty() ? std::chrono::milliseconds(0) : kInterval,
            [self = shared_from_this(), is_done = found.pids.empty()] {
              if (!is_done) return self->step();
              if (const auto done = std::exchange(self->done_, nullptr)) done();
            });
}

}  // namespace ddprun::agent
