// SPDX-License-Identifier: Apache-2.0
#include "agent/warden_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/child_pidfd.h"
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

// Fds that posix_spawn's child must not lose to each other's numbers.
UniqueFd above_standard(UniqueFd fd) {
  if (fd.get() > warden::kCgroupFd) return fd;
  UniqueFd higher(::fcntl(fd.get(), F_DUPFD_CLOEXEC, warden::kCgroupFd + 1));
  if (!higher) throw_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
  return higher;
}

pid_t spawn_warden(const std::string& path, std::string directory, int socket,
                   const RoundCgroup* cgroup) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, warden::kSocketFd);
  const UniqueFd cgroup_fd =
      cgroup != nullptr ? above_standard(UniqueFd(::fcntl(cgroup->fd(), F_DUPFD_CLOEXEC, 0)))
                        : UniqueFd();
  if (cgroup_fd) {
    posix_spawn_file_actions_adddup2(&actions, cgroup_fd.get(), warden::kCgroupFd);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // From its first instruction on no signal of the terminal or of a scheduler ends it.
  sigset_t all;
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK);
  std::string name = "ddprun-warden";
  std::string cgroup_name = cgroup_fd ? cgroup->name() : "";
  char* argv[] = {name.data(), directory.data(), cgroup_fd ? cgroup_name.data() : nullptr, nullptr};
  char* envp[] = {nullptr};
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, path.c_str(), &actions, &attributes, argv, envp);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error == EAGAIN) {
    throw Error(ErrorCode::kSystem, "starting " + path + ": " + errno_text(error) +
                                        " (a limit of processes: ulimit -u, or the cgroup's "
                                        "pids.max)");
  }
  if (error != 0) throw_system_error("starting " + path + " (a part of ddprun)", error);
  return pid;
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
  UniqueFd theirs = above_standard(UniqueFd(ends[1]));
  // The warden's reports wait for a slow agent; it polls before it reads.
  ::fcntl(theirs.get(), F_SETFL, 0);
  // If the warden is killed, what the workers left comes to us (orphan_sweep.h).
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t pid = spawn_warden(path, directory, theirs.get(), cgroup);
  UniqueFd pidfd = open_child_pidfd(pid, path);
  std::shared_ptr<WardenProcess> process(
      new WardenProcess(io, pid, std::move(ours), std::move(pidfd), std::move(events)));
  process->watch();
  return process;
}

WardenProcess::WardenProcess(boost::asio::io_context& io, pid_t pid, UniqueFd socket,
                             UniqueFd pidfd, Events events)
    : pid_(pid),
      process_(pid),
      socket_(io, socket.release()),
      pidfd_(io, pidfd.release()),
      stops_(io, SIGCHLD),
      events_(std::move(events)) {}

WardenProcess::~WardenProcess() = default;

// The handler keeps this object until the process is reaped, also after abandon().
void WardenProcess::watch() {
  wait_for_end();
  wait_for_stop();
  wait_readable();
}

void WardenProcess::wait_for_end() {
  pidfd_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](const boost::system::error_code& error) {
                      if (!error) self->on_process_end();
                    });
}

void WardenProcess::wait_for_stop() {
  stops_.async_wait([self = shared_from_this()](const boost::system::error_code& error, int) {
    if (error || !self->process_) return;
    siginfo_t stopped{};
    const auto pid = static_cast<id_t>(self->pid_);
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

// An open socket: it isn't reaped yet, so the pid is its own.
void WardenProcess::resume() {
  if (socket_.is_open()) ::kill(pid_, SIGCONT);
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
      ::kill(pid_, SIGKILL);  // of another build: its workers die with it, gone() follows
      return;
    }
    if (events_.report) events_.report(report);
  }
}

void WardenProcess::on_process_end() {
  const auto self = shared_from_this();
  int wait_status = 0;
  // Asio may wake us for the end of an earlier warden, whose pidfd had this one's number.
  if (::waitpid(pid_, &wait_status, WNOHANG) == 0) return wait_for_end();
  if (socket_.is_open()) read_reports();  // what it said before it ended
  process_.reset();
  boost::system::error_code ignored;
  stops_.cancel(ignored);
  socket_.close(ignored);
  pidfd_.close(ignored);
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
