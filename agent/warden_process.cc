// SPDX-License-Identifier: Apache-2.0
#include "agent/warden_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/error.h"
#include "common/log.h"
#include "common/process_facts.h"
#include "rendezvous/store_server/file_limit.h"

namespace ddprun::agent {
namespace {

// The text of a request, which is too much for a message: a file in memory.
UniqueFd make_payload(const WardenSpawn& spawn, std::uint64_t* size) {
  std::string text;
  const auto add = [&](const std::string& part) { text.append(part.c_str(), part.size() + 1); };
  add(*spawn.working_directory);
  for (const auto& part : *spawn.argv) add(part);
  for (const auto& part : *spawn.environment) add(part);
  UniqueFd file(::memfd_create("ddprun-spawn", MFD_CLOEXEC));
  if (!file) throw_system_error("memfd_create", errno);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(file.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EFBIG) {
      throw Error(ErrorCode::kSystem, concat("writing a worker's command, ", text.size(),
                                             " bytes, to memory: ", errno_text(EFBIG),
                                             " (ulimit -f counts that, too)"));
    }
    if (n < 0) throw_system_error("writing a worker's command", errno);
    done += static_cast<std::size_t>(n);
  }
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
  // From its first instruction on no signal of the terminal or of a scheduler ends it.
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

}  // namespace

std::string WardenProcess::default_path() { return helper_program("ddprun-warden"); }

std::shared_ptr<WardenProcess> WardenProcess::launch(boost::asio::io_context& io,
                                                     const std::string& path,
                                                     const std::string& directory, Events events,
                                                     const RoundCgroup* cgroup) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    throw_system_error("socketpair", errno);
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  // The warden's reports wait for a slow agent; it polls before it reads.
  ::fcntl(theirs.get(), F_SETFL, 0);
  // If the warden is killed, what the workers left comes to us (orphan_sweep.h).
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  std::shared_ptr<WardenProcess> process(new WardenProcess(io, std::move(ours), std::move(events)));
  process->child_ = start_warden(io, warden_command(path, directory, theirs.get(), cgroup),
                                 [weak = std::weak_ptr(process)](int wait_status) {
                                   if (const auto self = weak.lock()) {
                                     self->on_process_end(wait_status);
                                   }
                                 });
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
  Outgoing outgoing;
  outgoing.request.type = warden::RequestType::kSpawn;
  outgoing.request.worker = spawn.worker;
  outgoing.request.num_arguments = static_cast<std::uint32_t>(spawn.argv->size());
  outgoing.request.num_variables = static_cast<std::uint32_t>(spawn.environment->size());
  outgoing.request.max_open_files = store::initial_file_limit();
  static_assert(CpuSet::kMostCpus == warden::kCpuWords * 64);
  std::copy(spawn.cpus.words().begin(), spawn.cpus.words().end(), outgoing.request.cpus);
  outgoing.fds.push_back(make_payload(spawn, &outgoing.request.payload_bytes));
  std::vector<int> given = {spawn.stdin_fd, spawn.stdout_fd, spawn.stderr_fd};
  if (spawn.cgroup_fd >= 0) given.push_back(spawn.cgroup_fd);
  for (const int fd : given) {
    UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!copy) throw_system_error("duplicating a worker's descriptor", errno);
    outgoing.fds.push_back(std::move(copy));
  }
  queue_.push_back(std::move(outgoing));
  send_queued();
}

void WardenProcess::request(warden::RequestType type, int signal_number) {
  Outgoing outgoing;
  outgoing.request.type = type;
  outgoing.request.signal_number = signal_number;
  queue_.push_back(std::move(outgoing));
  send_queued();
  if (type != warden::RequestType::kSignal) resume();
}

void WardenProcess::clear(pid_t pid) {
  Outgoing outgoing;
  outgoing.request.type = warden::RequestType::kClear;
  outgoing.request.ended_pid = pid;
  queue_.push_back(std::move(outgoing));
  send_queued();
  resume();
}

void WardenProcess::lease(std::optional<Clock::time_point> until) {
  using std::chrono::milliseconds;
  Outgoing outgoing;
  outgoing.request.type = warden::RequestType::kLease;
  if (until) {
    // Clock is CLOCK_MONOTONIC; never 0, which means "for ever".
    const auto at = std::chrono::duration_cast<milliseconds>(until->time_since_epoch());
    outgoing.request.lease_until_ms = std::max<std::int64_t>(at.count(), 1);
  }
  queue_.push_back(std::move(outgoing));
  send_queued();
  resume();  // a stopped one keeps no lease
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

// False: no room now.
bool WardenProcess::send_now(const Outgoing& outgoing) {
  iovec part{const_cast<warden::Request*>(&outgoing.request), sizeof outgoing.request};
  alignas(cmsghdr) char control[CMSG_SPACE(warden::kMostSpawnFds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!outgoing.fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(outgoing.fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(outgoing.fds.size() * sizeof(int));
    for (std::size_t i = 0; i < outgoing.fds.size(); ++i) {
      const int fd = outgoing.fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof fd);
    }
  }
  ssize_t size;
  do {
    size = ::sendmsg(socket_.native_handle(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (size < 0 && errno == EINTR);
  // Any other error means that the warden is gone, and its pidfd says so.
  return size >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void WardenProcess::wait_readable() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                       if (error) return;
                       self->read_reports();
                     });
}

void WardenProcess::read_reports() {
  const auto self = shared_from_this();  // an event may let go of us
  while (socket_.is_open()) {
    warden::Report report;
    const ssize_t size = ::recv(socket_.native_handle(), &report, sizeof report, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return wait_readable();
    if (size <= 0) return;  // its end follows by pidfd
    if (size != static_cast<ssize_t>(sizeof report) || report.version != warden::kVersion) {
      child_->signal(SIGKILL);  // of another build: its workers die with it, gone() follows
      return;
    }
    if (events_.report) events_.report(report);
  }
}

void WardenProcess::on_process_end(int wait_status) {
  if (socket_.is_open()) read_reports();  // what it said before it ended
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

}  // namespace ddprun::agent
