// SPDX-License-Identifier: Apache-2.0
#include "ctl/submit/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <utility>
#include <vector>

#include "common/child_pidfd.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/unique_fd.h"
#include "ctl/submit/spawn.h"

namespace ddprun::submit {
namespace {

constexpr std::size_t kMostOutputBytes = std::size_t{64} << 20;

UniqueFd file_of(const std::string& text) {
  UniqueFd file(::memfd_create("input", MFD_CLOEXEC));
  if (!file) throw_system_error("memfd_create", errno);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t size = ::write(file.get(), text.data() + done, text.size() - done);
    if (size < 0) throw_system_error("write", errno);
    done += static_cast<std::size_t>(size);
  }
  ::lseek(file.get(), 0, SEEK_SET);
  return file;
}

std::pair<UniqueFd, UniqueFd> pipe_ends() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_system_error("pipe2", errno);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// A child that is killed and reaped unless it was waited for.
class Child {
 public:
  Child(pid_t pid, const std::string& program)
      : pid_(pid), pidfd_(open_child_pidfd(pid, program)) {}
  ~Child() {
    if (pid_ == 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int pidfd() const { return pidfd_.get(); }
  // Blocks until it has ended.
  int wait() {
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return WIFSIGNALED(status) ? exit_status_for_signal(WTERMSIG(status)) : WEXITSTATUS(status);
  }

 private:
  pid_t pid_;
  UniqueFd pidfd_;
};

class Reader {
 public:
  Reader(const ProgramCall& call, UniqueFd out, UniqueFd err)
      : call_(call), out_(std::move(out)), err_(std::move(err)) {}

  // Until it has ended, and all that it wrote is read. False: nobody wants more of it.
  bool read_all(int pidfd) {
    Deadline deadline = limit_from_now();
    bool has_ended = false;
    while (out_ || err_ || !has_ended) {
      std::array<pollfd, 3> polled = {pollfd{out_.get(), POLLIN, 0}, pollfd{err_.get(), POLLIN, 0},
                                      pollfd{has_ended ? -1 : pidfd, POLLIN, 0}};
      constexpr int kLookMs = 200;
      const int left = has_ended ? 0 : deadline.poll_timeout_ms();
      const int wait = call_.view != nullptr ? std::min(kLookMs, left) : left;
      const int ready = ::poll(polled.data(), polled.size(), wait);
      if (ready < 0 && errno != EINTR) throw_system_error("poll", errno);
      // What it left behind may keep its ends open: nobody waits for that.
      if (ready == 0 && has_ended) break;
      if (call_.view != nullptr && !call_.view->pause(std::chrono::milliseconds(0))) return false;
      if (ready == 0 && deadline.expired()) throw_timeout();
      if (ready <= 0) continue;
      if (polled[0].revents != 0 && !take_out()) return false;
      if (polled[1].revents != 0) take_err();
      if (call_.view != nullptr) deadline = limit_from_now();
      has_ended = has_ended || polled[2].revents != 0;
    }
    return true;
  }

  ProgramEnd take_end() { return std::move(end_); }

 private:
  Deadline limit_from_now() const {
    return call_.limit.count() > 0 ? Deadline::after(call_.limit)
                                   : Deadline::after(std::chrono::hours::max());
  }

  [[noreturn]] void throw_timeout() const {
    throw Error(ErrorCode::kTimeout, concat(call_.argv.front(), " did not answer within ",
                                            call_.limit.count() / 1000, " s"));
  }

  // False: the view has ended.
  bool take_out() {
    const std::string_view text = read_from(out_);
    if (call_.view != nullptr) return text.empty() || call_.view->show(text);
    if (end_.out.size() + text.size() > kMostOutputBytes) {
      throw Error(ErrorCode::kResourceExhausted, call_.argv.front() + " said more than 64 MiB");
    }
    end_.out += text;
    return true;
  }

  void take_err() {
    const std::string_view text = read_from(err_);
    if (end_.err.size() < kMostOutputBytes) end_.err += text;
  }

  // Empty: there is none now, or any more.
  std::string_view read_from(UniqueFd& fd) {
    const ssize_t size = ::read(fd.get(), buffer_.data(), buffer_.size());
    if (size == 0 || (size < 0 && errno != EINTR)) fd.reset();
    return {buffer_.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0))};
  }

  const ProgramCall& call_;
  UniqueFd out_, err_;
  // On the heap: a stack may be small (ulimit -s).
  std::vector<char> buffer_ = std::vector<char>(65'536);
  ProgramEnd end_;
};

}  // namespace

ProgramEnd run_program(const ProgramCall& call) {
  const UniqueFd input = file_of(call.input);
  auto [out_read, out_write] = pipe_ends();
  auto [err_read, err_write] = pipe_ends();
  const pid_t pid = spawn({.argv = call.argv,
                           .environment = call.environment,
                           .descriptors = {input.get(), out_write.get(), err_write.get()},
                           .without = call.without});
  Child child(pid, call.argv.front());
  out_write.reset();
  err_write.reset();
  Reader reader(call, std::move(out_read), std::move(err_read));
  const bool is_whole = reader.read_all(child.pidfd());
  ProgramEnd end = reader.take_end();
  if (is_whole) end.status = child.wait();
  return end;
}

std::string failure_text(const ProgramEnd& end) {
  for (const std::string* text : {&end.err, &end.out}) {
    const std::size_t last = text->find_last_not_of(" \n\r");
    if (last == std::string::npos) continue;
    const std::size_t begin = text->rfind('\n', last);
    return one_line(text->substr(begin == std::string::npos ? 0 : begin + 1,
                                 last - (begin == std::string::npos ? -1 : begin)));
  }
  return "exit status " + std::to_string(end.status);
}

}  // namespace ddprun::submit
