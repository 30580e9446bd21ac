// SPDX-License-Identifier: Apache-2.0
#include "agent/isolation/worker_cgroups.h"

#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <csignal>
#include <sstream>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "rendezvous/asio/waits.h"

namespace ddprun::agent {
namespace {

// Finds "populated 1" in a cgroup.events, "max 3" in a pids.events; 0: it isn't there.
std::uint64_t value_of(const std::string& text, const std::string& name) {
  std::istringstream in(text);
  std::string word;
  std::uint64_t value = 0;
  while (in >> word >> value) {
    if (word == name) return value;
  }
  return 0;
}

// Parses a number of bytes; "max" gives nullopt.
std::optional<std::uint64_t> bytes_in(const std::string& text) {
  std::istringstream in(text);
  std::uint64_t bytes = 0;
  return in >> bytes ? std::optional(bytes) : std::nullopt;
}

void must(int error, const std::string& what) {
  if (error != 0) throw Error(ErrorCode::kSystem, concat(what, ": ", errno_text(error)));
}

constexpr char kRoundPrefix[] = "ddprun-round-";
// An attempt fails if another ddprun that starts just now removes the cgroup.
constexpr int kMostAttempts = 16;
// For processes that were killed, or are ending.
constexpr std::chrono::milliseconds kLeafPatience{1'000};

// Waits until it is empty; false: it was not before the deadline. The kernel reports each change of
// cgroup.events since the descriptor was read as POLLPRI.
bool becomes_empty(const CgroupTree& tree, const std::string& directory, Deadline deadline) {
  const UniqueFd events = tree.open(directory + "/cgroup.events");
  while (events) {
    char ignored;
    [[maybe_unused]] const ssize_t size = ::pread(events.get(), &ignored, 1, 0);
    if (is_empty_cgroup(tree, directory)) return true;
    if (deadline.expired()) return false;
    pollfd change{events.get(), POLLPRI, 0};
    ::poll(&change, 1, deadline.poll_timeout_ms());
  }
  return true;  // it is gone
}

}  // namespace

WorkerMemory parse_worker_memory(const std::string& events, const std::string& peak,
                                 const std::string& max) {
  WorkerMemory memory;
  memory.num_at_limit = value_of(events, "oom");
  memory.num_killed = value_of(events, "oom_kill");
  memory.num_ended_whole = value_of(events, "oom_group_kill");
  memory.peak_bytes = bytes_in(peak);
  memory.limit_bytes = bytes_in(max);
  return memory;
}

std::string explain_end(const WorkerMemory& memory, int signal_number) {
  if (memory.num_killed == 0) return {};
  const bool was_killed = signal_number == SIGKILL;
  const bool by_own_limit = memory.num_at_limit > 0;
  const std::string who =
      memory.num_ended_whole > 0
          ? "all of it"
          : concat(memory.num_killed, memory.num_killed == 1 ? " process" : " processes", " of it");
  std::string text = concat(
      was_killed ? "" : "perhaps ", "ran out: the kernel's OOM killer killed ", who, ", ",
      by_own_limit ? "at its own limit" : "not at its own limit: at one above, or the machine's");
  text += " (";
  if (memory.peak_bytes) text += concat("peak ", size_text(*memory.peak_bytes), ", ");
  text += memory.limit_bytes ? "limit " + size_text(*memory.limit_bytes) : "no limit of its own";
  text += concat("; ", memory.events_file, ": oom ", memory.num_at_limit, ", oom_kill ",
                 memory.num_killed, ")");
  if (!was_killed) text += ", but not the worker itself";
  return text;
}

bool is_empty_cgroup(const CgroupTree& tree, const std::string& directory) {
  const auto events = tree.read(directory + "/cgroup.events");
  return !events || value_of(*events, "populated") == 0;
}

bool remove_cgroups(CgroupTree& tree, const std::string& directory) {
  // The recursion ends where a path becomes too long for the kernel.
  for (const std::string& name : tree.children(directory)) {
    remove_cgroups(tree, directory + "/" + name);
  }
  const int error = tree.remove(directory);
  return error == 0 || error == ENOENT;
}

UniqueFd make_locked_cgroup(CgroupTree& tree, const std::string& directory) {
  must(tree.make(directory), "making the cgroup " + directory);
  UniqueFd fd = tree.open(directory);
  const bool is_locked = fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
  // Once it is locked, nobody removes it. It may have been removed before that.
  if (is_locked && tree.open(directory)) return fd;
  const int error = errno;
  tree.remove(directory);
  if (error == ENOENT || error == EWOULDBLOCK) return {};
  throw_system_error("locking the cgroup " + directory, error);
}

RoundCgroup::RoundCgroup(std::shared_ptr<CgroupTree> tree, std::string directory, UniqueFd lock,
                         const IsolationPlan& plan)
    : tree_(std::move(tree)), directory_(std::move(directory)), fd_(std::move(lock)) {
  try {
    fill(plan);
  } catch (...) {
    leaves_.clear();
    remove();
    throw;
  }
}

RoundCgroup::~RoundCgroup() { remove(); }

void RoundCgroup::fill(const IsolationPlan& plan) {
  for (const std::string& controller : plan.controllers) {
    must(tree_->write(directory_ + "/cgroup.subtree_control", "+" + controller),
         concat("enabling ", controller, " in ", directory_, "/cgroup.subtree_control"));
  }
  const auto& needed = plan.controllers;
  counts_memory_ = std::find(needed.begin(), needed.end(), "memory") != needed.end();
  for (std::size_t rank = 0; rank < plan.workers.size(); ++rank) {
    const std::string directory = leaf(static_cast<int>(rank));
    must(tree_->make(directory), "making the cgroup " + directory);
    for (const CgroupSetting& setting : plan.workers[rank]) set(directory, setting);
    leaves_.push_back(tree_->open(directory));
    if (!leaves_.back()) throw_system_error("opening the cgroup " + directory, errno);
  }
}

void RoundCgroup::set(const std::string& directory, const CgroupSetting& setting) {
  const std::string file = directory + "/" + setting.file;
  const int error = tree_->write(file, setting.value);
  if (error == ENOENT && setting.may_lack) return;
  must(error, concat("writing \"", setting.value, "\" to ", file));
  const std::string shown = setting.seen_in.empty() ? file : directory + "/" + setting.seen_in;
  int read_error = 0;
  const auto seen = tree_->read(shown, &read_error);
  if (!seen) must(read_error, "reading back " + shown);
  if (const std::string other = difference(setting, *seen); !other.empty()) {
    throw Error(ErrorCode::kSystem,
                concat(shown, " ", other, ": the kernel did not take this limit"));
  }
}

std::string RoundCgroup::leaf(int local_rank) const {
  return concat(directory_, "/worker-", local_rank);
}

int RoundCgroup::worker_fd(int local_rank) const {
  return leaves_.at(static_cast<std::size_t>(local_rank)).get();
}

void RoundCgroup::kill() { tree_->write(directory_ + "/cgroup.kill", "1"); }

bool RoundCgroup::is_empty() const { return is_empty_cgroup(*tree_, directory_); }

bool RoundCgroup::remove() { return remove_cgroups(*tree_, directory_); }

WorkerMemory RoundCgroup::memory_of(int local_rank) const {
  const std::string directory = leaf(local_rank);
  const auto text = [&](const char* file) {
    return tree_->read(directory + "/" + file).value_or("");
  };
  WorkerMemory memory =
      parse_worker_memory(text("memory.events"), text("memory.peak"), text("memory.max"));
  memory.events_file = directory + "/memory.events";
  return memory;
}

std::uint64_t RoundCgroup::pids_refused(int local_rank) const {
  return value_of(tree_->read(leaf(local_rank) + "/pids.events").value_or(""), "max");
}

std::shared_ptr<EmptyWait> EmptyWait::start(boost::asio::io_context& io,
                                            std::shared_ptr<const RoundCgroup> cgroup,
                                            Deadline deadline, std::function<void(bool)> done) {
  std::shared_ptr<EmptyWait> wait(new EmptyWait(io, std::move(cgroup), deadline, std::move(done)));
  wait->watch();
  return wait;
}

EmptyWait::EmptyWait(boost::asio::io_context& io, std::shared_ptr<const RoundCgroup> cgroup,
                     Deadline deadline, std::function<void(bool)> done)
    : cgroup_(std::move(cgroup)),
      deadline_(deadline),
      changes_(io),
      timer_(io),
      done_(std::move(done)) {}

// Starts the watch. Without inotify (a limit of watches) only the deadline's timer looks once more.
void EmptyWait::watch() {
  const UniqueFd events = cgroup_->tree().open(cgroup_->directory() + "/cgroup.events");
  const std::string file = "/proc/self/fd/" + std::to_string(events.get());
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (fd && events && ::inotify_add_watch(fd.get(), file.c_str(), IN_MODIFY) >= 0) {
    changes_.assign(fd.release());
    wait_for_change();
  }
  run_at(timer_, deadline_.at(),
         [self = shared_from_this()] { self->end(self->cgroup_->is_empty()); });
  boost::asio::post(timer_.get_executor(), [self = shared_from_this()] { self->look(); });
}

void EmptyWait::wait_for_change() {
  when_readable(changes_, [self = shared_from_this()] {
    if (!self->done_) return;
    std::array<char, 4096> events;
    while (::read(self->changes_.native_handle(), events.data(), events.size()) > 0) {
    }
    self->wait_for_change();
    self->look();
  });
}

void EmptyWait::look() {
  if (cgroup_->is_empty()) end(true);
}

void EmptyWait::end(bool is_empty) {
  const auto done = std::exchange(done_, nullptr);
  abandon();
  if (done) done(is_empty);
}

void EmptyWait::abandon() {
  done_ = nullptr;
  boost::system::error_code ignored;
  timer_.cancel();
  changes_.close(ignored);
}

void enter_supervisor(CgroupTree& tree, const std::string& directory, pid_t process) {
  const std::string leaf = directory + "/" + kSupervisor, procs = leaf + "/cgroup.procs";
  const int made = tree.make(leaf);
  const bool is_there = made == 0 || made == EEXIST;
  const int error = is_there ? tree.write(procs, std::to_string(process)) : made;
  if (error == 0) return;
  if (made == 0) tree.remove(leaf);
  throw Error(ErrorCode::kSystem, concat("moving ddprun to ", procs, ": ", errno_text(error)));
}

WorkerCgroups::WorkerCgroups(std::shared_ptr<CgroupTree> tree, IsolationPlan plan, pid_t own)
    : tree_(std::move(tree)),
      plan_(std::move(plan)),
      own_(own),
      supervisor_(plan_.place.directory + "/" + kSupervisor) {
  end_leftovers();
  try {
    if (plan_.place.needs_supervisor && !plan_.controllers.empty()) {
      enter_supervisor(*tree_, plan_.place.directory, own_);
      moved_ = true;
    }
    enable_controllers();
  } catch (const Error&) {
    close();
    throw;
  }
}

// Enables those that aren't enabled: others may have disabled them since the last call.
void WorkerCgroups::enable_controllers() {
  const std::string& directory = plan_.place.directory;
  const std::string file = directory + "/cgroup.subtree_control";
  const auto known = words_of(tree_->read(file).value_or(""));
  for (const std::string& controller : plan_.controllers) {
    if (std::find(known.begin(), known.end(), controller) != known.end()) continue;
    if (const int error = tree_->write(file, "+" + controller); error != 0) {
      std::string why = errno_text(error);
      const std::string who = to_text(*tree_, processes_directly_in(*tree_, directory));
      if (error == EBUSY && !who.empty()) why += ": these are in it: " + who;
      throw Error(ErrorCode::kSystem, concat("enabling ", controller, " in ", file, ": ", why));
    }
    enabled_.push_back(controller);
  }
}

// Ends rounds whose warden and ddprun were both killed. A held lock means that one of them lives.
void WorkerCgroups::end_leftovers() {
  const std::string& directory = plan_.place.directory;
  for (const std::string& name : tree_->children(directory)) {
    if (!name.starts_with(kRoundPrefix)) continue;
    const std::string round = directory + "/" + name;
    const UniqueFd fd = tree_->open(round);
    if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (!end_round(round)) {
      log_warning("an earlier job's processes can't be killed: ",
                  to_text(*tree_, processes_in(*tree_, round)), " (", round, ")");
    }
  }
}

bool WorkerCgroups::end_round(const std::string& round) {
  tree_->write(round + "/cgroup.kill", "1");
  const bool is_empty = becomes_empty(*tree_, round, Deadline::after(kLeafPatience));
  remove_cgroups(*tree_, round);
  return is_empty;
}

std::shared_ptr<RoundCgroup> WorkerCgroups::begin_round() {
  enable_controllers();
  const std::string& directory = plan_.place.directory;
  const auto there = tree_->children(directory);
  std::string name;
  UniqueFd lock;
  for (int attempt = 0; !lock; ++attempt) {
    if (attempt == kMostAttempts) {
      throw Error(ErrorCode::kSystem, concat("others remove each new cgroup in ", directory));
    }
    do {
      name = concat(kRoundPrefix, own_, "-", ++num_rounds_);
    } while (std::find(there.begin(), there.end(), name) != there.end());
    lock = make_locked_cgroup(*tree_, directory + "/" + name);
  }
  auto round = std::make_shared<RoundCgroup>(tree_, directory + "/" + name, std::move(lock), plan_);
  rounds_.push_back(round->directory());
  return round;
}

// If ddprun began in a supervisor's leaf, its controllers stay enabled: another ddprun there may be
// about to use them.
void WorkerCgroups::close() {
  if (!moved_) return;
  const std::string& directory = plan_.place.directory;
  // A warden may still be in one: nobody waits for the warden of a spare's workers.
  for (const std::string& round : std::exchange(rounds_, {})) end_round(round);
  auto others = tree_->children(directory);
  std::erase(others, kSupervisor);
  // Includes helpers that are about to end. They are listed first: one that ended in between would
  // look like another's process.
  auto family = processes_below(*tree_, own_);
  family.push_back(own_);
  const auto pids = processes_in(*tree_, supervisor_);
  const bool is_ours = std::all_of(pids.begin(), pids.end(), [&](pid_t pid) {
    return std::find(family.begin(), family.end(), pid) != family.end();
  });
  if (!others.empty() || !is_ours) return;
  for (const std::string& controller : std::exchange(enabled_, {})) {
    tree_->write(directory + "/cgroup.subtree_control", "-" + controller);
  }
  moved_ = false;
  for (const pid_t pid : pids) tree_->write(directory + "/cgroup.procs", std::to_string(pid));
  // The kernel doesn't move a process or thread that is ending, and reports no error.
  becomes_empty(*tree_, supervisor_, Deadline::after(kLeafPatience));
  remove_cgroups(*tree_, supervisor_);
}

}  // namespace ddprun::agent
