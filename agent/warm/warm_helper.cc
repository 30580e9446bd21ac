// SPDX-License-Identifier: Apache-2.0
#include "agent/warm/warm_helper.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string_view>
#include <utility>

#include "agent/python_texts.h"
#include "agent/warden/protocol.h"
#include "common/cgroup_limits.h"
#include "common/child_process.h"
#include "common/clock.h"
#include "common/error.h"
#include "common/json.h"
#include "common/send_descriptors.h"
#include "common/signal_names.h"
#include "common/text.h"

namespace ddprun::agent {
namespace {

namespace json = boost::json;

constexpr std::size_t kMostBytes = 4'096;

std::string word_of(const json::object& answer, const char* name) {
  const json::value* value = answer.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : std::string();
}

// Recognises "python", "python3", "python3.13t": names of other programs may begin the same way.
bool is_python(const std::string& name) {
  constexpr std::string_view kPython = "python";
  if (!name.starts_with(kPython)) return false;
  std::string_view rest(name);
  rest.remove_prefix(kPython.size());
  rest.remove_prefix(std::min(rest.find_first_not_of("0123456789."), rest.size()));
  return rest.empty() || (rest.size() == 1 && rest[0] >= 'a' && rest[0] <= 'z');
}

// Returns how many words this flag of Python takes. 0: with the flag there may be no script, or
// another one.
std::size_t num_words_of(std::string_view flag) {
  if (flag == "--check-hash-based-pycs") return 2;
  if (flag.starts_with("--") || flag.size() < 2) return 0;
  for (std::size_t i = 1; i < flag.size(); ++i) {
    if (flag[i] == 'W' || flag[i] == 'X')
      return i + 1 == flag.size() ? 2 : 1;  // the rest is its value
    if (std::string_view("bBdEIOPqRsSuv").find(flag[i]) == std::string_view::npos) return 0;
  }
  return 1;
}

// Checks that the process `pid` is the warden whose socket is `ours`, and waits until it has
// reported. Returns the problem; empty: none. A module may have written any number. It may also
// have changed the helper so that the warden ends before it begins.
std::string take_warden(std::int64_t pid, int ours, const Deadline& deadline, Child& child) {
  const std::string who =
      "the warden that the helper names ";  // without its pid: lines are compared
  const bool is_number = pid > 0 && pid <= std::numeric_limits<pid_t>::max();
  siginfo_t ended{};
  if (!is_number || is_helper_process(static_cast<pid_t>(pid)) ||
      ::waitid(P_PID, static_cast<id_t>(pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0) {
    return who + "is no new child of ddprun";
  }
  child.pid = static_cast<pid_t>(pid);
  child.pidfd.reset(static_cast<int>(::syscall(SYS_pidfd_open, child.pid, 0)));
  if (!child.pidfd) return concat("pidfd_open: ", errno_text(errno));
  std::array<pollfd, 2> set{{{ours, POLLIN, 0}, {child.pidfd.get(), POLLIN, 0}}};
  while (!deadline.expired()) {
    // A signal ends the wait early.
    if (::poll(set.data(), set.size(), deadline.poll_timeout_ms()) <= 0) continue;
    if (set[0].revents == 0) return who + "ended before it began";
    warden::Report report;
    const ssize_t size = ::recv(ours, &report, sizeof report, MSG_PEEK | MSG_DONTWAIT);
    const bool is_its_own = size == sizeof report && report.pid == child.pid;
    return is_its_own ? "" : who + "is not the one that runs";
  }
  return who + "does not report";
}

}  // namespace

std::optional<PythonCommand> python_command(const std::vector<std::string>& argv) {
  namespace fs = std::filesystem;
  if (argv.empty() || !is_python(fs::path(argv[0]).filename().string())) return {};
  std::size_t at = 1;
  while (at < argv.size() && argv[at].starts_with('-') && argv[at] != "-m") {
    const std::size_t num_words = num_words_of(argv[at]);
    if (num_words == 0) return {};
    at += num_words;
  }
  if (at >= argv.size()) return {};
  PythonCommand python;
  python.interpreter.assign(argv.begin(), argv.begin() + static_cast<std::ptrdiff_t>(at));
  std::error_code error;
  const fs::path here = fs::current_path(error);
  if (argv[at] == "-m") {
    python.path = here.string();
    python.program = at + 1 < argv.size() ? "-m " + argv[at + 1] : "-m";
  } else {
    const fs::path script = fs::canonical(argv[at], error);
    python.path = script.parent_path().string();
    python.program = script.string();
  }
  return python;
}

std::shared_ptr<WarmHelper> WarmHelper::start(boost::asio::io_context& io,
                                              const WarmOptions& options,
                                              const std::vector<std::string>& argv,
                                              std::vector<std::string> environment, Tell tell,
                                              std::function<void()> ended) {
  std::shared_ptr<WarmHelper> helper(
      new WarmHelper(io, options, std::move(tell), std::move(ended)));
  const auto python = python_command(argv);
  if (!python) {
    helper->lost("the workers run no Python script or module");
    return helper;
  }
  try {
    helper->launch(options, *python, std::move(environment));
  } catch (const Error& error) {
    helper->lost(error.what());
  }
  return helper;
}

WarmHelper::WarmHelper(boost::asio::io_context& io, const WarmOptions& options, Tell tell,
                       std::function<void()> ended)
    : tell_(std::move(tell)),
      ended_(std::move(ended)),
      import_limit_(options.limit),
      answer_limit_(options.answer_limit),
      socket_(io),
      limit_(io) {}

WarmHelper::~WarmHelper() { close(); }

void WarmHelper::launch(const WarmOptions& options, const PythonCommand& python,
                        std::vector<std::string> environment) {
  auto [ours, theirs] = make_socket_pair(SOCK_SEQPACKET);
  socket_.assign(ours.release());
  json::array modules(options.modules.begin(), options.modules.end());
  ChildCommand command;
  command.argv = python.interpreter;
  command.argv.insert(command.argv.end(),
                      {"-c", kWarmHelperText,
                       json::serialize(json::object{{"modules", std::move(modules)},
                                                    {"path", python.path},
                                                    {"program", python.program},
                                                    {"auto", options.is_auto},
                                                    {"cache", options.cache},
                                                    {"has_list", options.list >= 0},
                                                    {"hurry", options.in_a_hurry},
                                                    {"most_bytes", usable_memory_bytes() / 2}})});
  command.environment = std::move(environment);
  // The output of a module's import is shown once, on stderr.
  command.descriptors = {ChildCommand::kNothing, STDERR_FILENO, STDERR_FILENO, theirs.get()};
  if (options.list >= 0) command.descriptors.push_back(options.list);
  command.own_session = true;
  command.dies_with_us = true;
  // A warden that it forks becomes a child of this process.
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  auto& io = static_cast<boost::asio::io_context&>(socket_.get_executor().context());
  child_ = WatchedChild::start(io, command, [weak = weak_from_this()](int wait_status) {
    const auto self = weak.lock();
    if (!self) return;
    self->ended_();
    if (self->state_ == State::kGone) return;
    self->lost(WIFSIGNALED(wait_status)
                   ? concat("the helper was ended by ", signal_name(WTERMSIG(wait_status)))
                   : concat("the helper ended with status ", WEXITSTATUS(wait_status)));
  });
  if (options.in_a_hurry) limit_imports();
  wait_for_message();
}

void WarmHelper::limit_imports() {
  if (std::exchange(is_limited_, true)) return;
  limit_.expires_after(import_limit_);
  limit_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (error || !self || self->state_ != State::kLoading) return;
    self->lost(
        concat("the imports had not ended after ", self->import_limit_.count() / 1000, " s"));
  });
}

void WarmHelper::wait_for_message() {
  socket_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [weak = weak_from_this()](const boost::system::error_code& error) {
                       const auto self = weak.lock();
                       if (error || !self || self->state_ == State::kGone) return;
                       const auto text = self->receive();
                       // Its end is handled by its pidfd, with the reason.
                       if (text && text->empty()) return;
                       if (text) self->heard(*text);
                       if (self->state_ != State::kGone) self->wait_for_message();
                     });
}

void WarmHelper::heard(const std::string& text) {
  const auto message = parse_object(text, 2);
  if (message && message->contains("ready")) {
    const json::value* of = message->if_contains("of");
    is_empty_ = of != nullptr && of->is_int64() && of->as_int64() == 0;
    return loaded(State::kReady);
  }
  if (message && message->contains("found")) {
    if (const std::string problem = word_of(*message, "problem"); !problem.empty()) {
      tell_(LogLevel::kWarning, concat("--preload-cache: ", one_line(problem)));
    }
    const json::value& found = message->at("found");
    const bool is_new = !found.is_int64() || found.as_int64() > 0;
    if (is_new && send(R"({"import":true})", {})) state_ = State::kBusy;
    return;
  }
  const std::string why = message ? word_of(*message, "cold") : "";
  // A new helper would hear of the same modules from the workers.
  if (state_ == State::kBusy) was_ready_ = false;
  lost(why.empty() ? "a module wrote to the helper's socket: " + text : why);
}

std::optional<std::string> WarmHelper::receive() {
  std::string text(kMostBytes, '\0');
  ssize_t size = 0;
  do {
    size = ::recv(socket_.native_handle(), text.data(), text.size(), MSG_DONTWAIT);
    // A helper that ends with an order unread resets the connection; its last message is still
    // there.
  } while (size < 0 && errno == ECONNRESET);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  text.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
  return text;
}

pid_t WarmHelper::pid() const { return child_ && child_->is_running() ? child_->pid() : 0; }

void WarmHelper::when_loaded(std::function<void()> loaded) {
  loaded_ = std::move(loaded);
  limit_imports();
  send(R"({"hurry":true})", {});
}

void WarmHelper::loaded(State state) {
  state_ = state;
  was_ready_ |= state == State::kReady;
  limit_.cancel();
  if (auto tell_it = std::exchange(loaded_, nullptr)) {
    boost::asio::post(socket_.get_executor(), std::move(tell_it));
  }
}

void WarmHelper::lost(const std::string& why) {
  why_cold_ = one_line(why);
  tell_(LogLevel::kWarning, concat("--preload: ", why_cold_, "; the workers start as ever"));
  close();
  loaded(State::kGone);
}

void WarmHelper::close() {
  state_ = State::kGone;
  boost::system::error_code ignored;
  socket_.close(ignored);
  limit_.cancel();
  if (child_) child_->signal(SIGKILL);
}

bool WarmHelper::send(const std::string& order, const std::vector<int>& descriptors) {
  return send_descriptors(socket_.native_handle(), order.data(), order.size(), descriptors.data(),
                          descriptors.size()) >= 0;
}

std::optional<Child> WarmHelper::start_warden(const std::string& program,
                                              const std::vector<std::string>& arguments, int socket,
                                              int ours, int cgroup, int num_workers) {
  if (state_ == State::kBusy) why_cold_ = "the helper still imports what the workers had";
  if (state_ != State::kReady) return std::nullopt;
  json::array words(arguments.begin(), arguments.end());
  const std::string order = json::serialize(json::object{
      {"program", program}, {"arguments", std::move(words)}, {"workers", num_workers}});
  std::optional<json::object> answer;
  std::vector<std::string> found;  // what the helper has found, handled after the order
  const Deadline deadline = Deadline::after(answer_limit_);
  if (send(order, cgroup < 0 ? std::vector{socket} : std::vector{socket, cgroup})) {
    while (!answer && !deadline.expired()) {
      pollfd answered{socket_.native_handle(), POLLIN, 0};
      // A signal ends the wait early.
      if (::poll(&answered, 1, deadline.poll_timeout_ms()) <= 0) continue;
      const auto text = receive();
      if (text && text->empty()) break;  // the helper has ended
      if (text) answer = parse_object(*text, 2);
      if (answer && answer->contains("found")) {
        found.push_back(*text);
        answer.reset();
      }
    }
  }
  const json::value* pid = answer ? answer->if_contains("warden") : nullptr;
  if (pid == nullptr || !pid->is_int64()) {
    const std::string why = answer ? word_of(*answer, "cold") : "";
    lost(why.empty() ? "the helper does not answer" : why);
    return std::nullopt;
  }
  Child child;
  if (const std::string why = take_warden(pid->as_int64(), ours, deadline, child); !why.empty()) {
    lost(why);  // its children are swept up when it has ended
    return std::nullopt;
  }
  why_cold_ = is_empty_ ? "what they import is not known yet" : "";
  for (const std::string& each : found) heard(each);
  return child;
}

}  // namespace ddprun::agent
