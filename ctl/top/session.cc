// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/session.h"

#include <curses.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <termcap.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "common/error.h"
#include "common/exit_codes.h"
#include "common/text.h"
#include "common/wall_time.h"
#include "ctl/top/picture.h"
#include "rendezvous/asio/waits.h"
#include "rendezvous/wire/frame_stream.h"
#include "rendezvous/wire/link_connector.h"

namespace ddprun::top {

using boost::asio::posix::stream_descriptor;
using membership::ConnectFailure, membership::FrameStream, membership::LinkConnector;

namespace {

constexpr std::array kEndings = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr std::chrono::seconds kSilence{15};  // the daemon sends something every 5 s
constexpr std::chrono::milliseconds kFirstWait{500}, kLongestWait{15'000};

// These are for signal handlers, which must not call ncurses.
termios g_shell_modes;
std::string g_leave;  // bytes that restore the shell's screen
volatile std::sig_atomic_t g_is_leaving = 0;

void after_crash(int signal) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, g_leave.data(), g_leave.size());
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_shell_modes);
  std::signal(signal, SIG_DFL);
  ::raise(signal);  // the signal is handled when this function returns
}

// If the program is to end, discards the rest of what ncurses writes.
void while_stuck(int) {
  sigset_t pending;
  ::sigpending(&pending);
  const bool is_told = std::ranges::any_of(
      kEndings, [&pending](int ending) { return ::sigismember(&pending, ending) == 1; });
  if (is_told || g_is_leaving != 0) ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
}

// Lets ncurses write, which it does until the terminal has taken everything. Signals that end the
// program work even if the terminal takes nothing. With `is_farewell`, SIGTTOU doesn't stop the
// program here.
void let_write(int (*write)(), bool is_farewell) {
  sigset_t held, before;
  ::sigemptyset(&held);
  for (const int each : kEndings) ::sigaddset(&held, each);
  if (is_farewell) ::sigaddset(&held, SIGTTOU);
  const itimerval often{{0, 500'000}, {0, 500'000}}, never{};
  ::pthread_sigmask(SIG_BLOCK, &held, &before);
  ::setitimer(ITIMER_REAL, &often, nullptr);
  write();
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// Opens the terminal again, so that the shell's open file stays blocking.
int opened_again(int fd, int mode) {
  for (const std::string& path : {concat("/proc/self/fd/", fd), std::string("/dev/tty")}) {
    const int own = ::open(path.c_str(), mode | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (own >= 0) return own;
  }
  throw_system_error("can't use the terminal", errno);
}

// Whether one of `events` has come, or the terminal has ended, which always counts.
bool has_event(int fd, short events) {
  pollfd now{fd, events, 0};
  return ::poll(&now, 1, 0) != 0;
}

// The terminal on stdin and stdout, drawn by ncurses, without a cursor. Only one object at a time.
class Terminal {
 public:
  Terminal(bool has_unicode, bool has_color) : has_unicode_(has_unicode) {
    if (::tcgetattr(STDIN_FILENO, &g_shell_modes) != 0) {
      throw_system_error("can't use the terminal", errno);
    }
    // If this kind of terminal isn't described here, uses xterm's sequences, which nearly all
    // understand. It is checked first, since a newterm() that fails leaks memory.
    const bool is_described = ::tgetent(nullptr, std::getenv("TERM")) == 1;
    if (::newterm(is_described ? nullptr : "xterm", stdout, stdin) == nullptr) {
      throw Error(ErrorCode::kInvalidArgument,
                  "no terminals are described here (terminfo): --once prints a picture");
    }
    for (const char* name : {"sgr0", "rmkx", "cnorm", "rmcup"}) {
      const char* bytes = ::tigetstr(name);
      if (bytes != nullptr && bytes != reinterpret_cast<char*>(-1)) g_leave += bytes;
    }
    for (const int crash : kCrashes) std::signal(crash, after_crash);
    std::signal(SIGALRM, while_stuck);
    ::cbreak();
    ::noecho();
    termios now{};
    ::tcgetattr(STDIN_FILENO, &now);
    now.c_iflag &= ~static_cast<tcflag_t>(IXON);  // ^S must not stop the output
    ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
    ::def_prog_mode();
    ::keypad(stdscr, TRUE);
    ::nodelay(stdscr, TRUE);
    ::set_escdelay(25);
    ::curs_set(0);
    if (!has_color || !::has_colors()) return;
    ::start_color();
    ::use_default_colors();
    for (const short color : {COLOR_RED, COLOR_GREEN, COLOR_YELLOW, COLOR_CYAN}) {
      ::init_pair(color, color, -1);
    }
  }
  ~Terminal() {
    g_is_leaving = 1;
    leave();
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Gives the shell its screen back, until show().
  void leave() {
    if (::isendwin()) return;
    let_write(::endwin, true);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &g_shell_modes);  // even if stdout is gone
  }

  // Called when the screen may show anything: the next picture is drawn whole, in the screen's
  // size.
  void forget() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
      ::resize_term(size.ws_row, size.ws_col);
    }
    ::clearok(stdscr, TRUE);
  }

  void show(const Lines& lines) {
    // Indexed by style. Without start_color() ncurses shows no colours.
    constexpr std::array<attr_t, kTitle + 1> kAttributes = {
        0, 0, A_BOLD, A_DIM, 0, 0, A_BOLD, A_BOLD, A_REVERSE, A_BOLD | A_UNDERLINE};
    constexpr std::array<short, kTitle + 1> kColors = {
        0, 0, 0, 0, COLOR_GREEN, COLOR_CYAN, COLOR_YELLOW, COLOR_RED, 0, 0};
    if (::isendwin()) {  // the shell may have set other modes meanwhile
      ::def_shell_mode();
      ::tcgetattr(STDIN_FILENO, &g_shell_modes);
    }
    ::erase();
    for (std::size_t row = 0; row < lines.size(); ++row) {
      ::move(row, 0);
      ::attrset(A_NORMAL);
      for (const char byte : has_unicode_ ? lines[row] : in_ascii(lines[row])) {
        if (byte > 0 && byte <= kTitle) {
          ::attr_set(kAttributes[byte], kColors[byte], nullptr);
        } else {
          ::addnstr(&byte, 1);
        }
      }
    }
    let_write(::refresh, false);
  }

 private:
  const bool has_unicode_;
};

class Session {
 public:
  explicit Session(const SessionOptions& options) : options_(options), turns_(options.endpoints) {
    for (const Endpoint& endpoint : options.endpoints) {
      connectors_.push_back(std::make_unique<LinkConnector>(
          io_, endpoint, options.security, "/v1/watch", LinkConnector::Door::kRequest));
    }
    view_.wanted = options.wanted;
    if (!options.wanted.empty()) view_.has_list = false;
    known_.endpoint = harmless(options.name);
  }
  ~Session() {
    if (frames_) frames_->close();
  }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  int run() {
    // Must come before ncurses, which installs handlers for signals that have none.
    for (const int number : kEndings) signals_.add(number);
    for (const int number : {SIGTSTP, SIGCONT, SIGWINCH}) signals_.add(number);
    terminal_.emplace(options_.has_unicode, options_.has_color);
    wait_for_signal();
    wait_for_key();
    draw();
    turns_.begin(turns_.current());
    attempt();
    io_.run();
    if (refused_) throw Error(*refused_);
    return exit_code_;
  }

 private:
  void end(int exit_code) {
    exit_code_ = exit_code;
    io_.stop();
  }

  void wait_for_signal() {
    signals_.async_wait([this](boost::system::error_code error, int number) {
      if (error) return;
      if (number == SIGTSTP) {
        // Stops as a program without a handler would.
        terminal_->leave();
        signals_.remove(SIGTSTP);
        ::raise(SIGTSTP);
        signals_.add(SIGTSTP);
      } else if (number == SIGCONT) {
        terminal_->leave();  // after SIGSTOP, which can't be noticed earlier
      } else if (number != SIGWINCH) {
        return end(exit_status_for_signal(number));
      }
      terminal_->forget();
      draw();
      wait_for_signal();
    });
  }

  void wait_for_key() {
    in_.async_wait(stream_descriptor::wait_read, [this](boost::system::error_code error) {
      if (error == boost::asio::error::operation_aborted) return;
      if (error || has_event(STDIN_FILENO, 0)) {
        return end(exit_status_for_signal(SIGHUP));
      }
      for (int key = ::getch(); key != ERR; key = ::getch()) pressed(key);
      wait_for_key();
    });
  }

  void pressed(int key) {
    constexpr int kControlL = 'L' - '@';
    if (key == kControlL) terminal_->forget();
    if (!view_.press(key, known_.state)) return end(0);
    tell();
    draw();
  }

  void attempt() {
    connectors_[turns_.current()]->attempt(
        Clock::now() + turns_.attempt_limit(),
        {.opened = [this](const std::shared_ptr<FrameStream>& frames) { opened(frames); },
         .failed = [this](const ConnectFailure& failure) { failed(failure); }});
  }

  void failed(const ConnectFailure& failure) {
    using Kind = ConnectFailure::Kind;
    const std::string who = to_string(connectors_[turns_.current()]->endpoint());
    if (!was_there_ && failure.kind == Kind::kUntrusted) {
      refused_ =
          Error(ErrorCode::kInvalidArgument, concat("the rendezvous at ", who, " ", failure.what));
    } else if (!was_there_ && failure.kind == Kind::kNoRendezvous) {
      refused_ = Error(ErrorCode::kProtocol,
                       concat("what listens at ", who,
                              " is no ddprun rendezvous, or an older one: ", failure.what));
    }
    if (refused_) return io_.stop();
    if (!turns_.failed(failure)) return attempt();
    lost(turns_.failures());
  }

  void opened(const std::shared_ptr<FrameStream>& frames) {
    was_there_ = true;
    frames_ = frames;
    FrameStream::Handlers handlers;
    handlers.frame = [this](std::string_view frame) {
      wait_ = kFirstWait;
      listen_for_silence();
      said(frame);
    };
    handlers.ended = [this](const std::string& reason) { lost(reason); };
    frames_->start(std::move(handlers));
    listen_for_silence();
  }

  void listen_for_silence() {
    run_after(timer_, kSilence,
              [this] { lost(concat("nothing was heard for ", kSilence.count(), " s")); });
  }

  void said(std::string_view frame) {
    try {
      const json::value all = read_json(frame);
      const std::string type = text(all, "type");
      if (type == "end") return give_up(text(all, "why"));
      if (type == "state") {
        known_.state = read_state(all);
        remember(known_.history, known_.state);
        known_.shown_at = local_time_text(std::time(nullptr));
        known_.too_large_bytes = 0;
        view_.settle(known_.state);
      } else if (type == "too_large") {
        known_.too_large_bytes = number(all, "bytes").value_or(0);
      } else if (type == "status") {
        known_.state.daemon = at(all, "status");
      } else if (type == "tail") {
        known_.tail = all;
      }
    } catch (const Error& error) {
      return give_up(error.what());
    }
    known_.is_live = true;
    known_.why.clear();
    tell();
    draw();
  }

  // Called if the daemon announced the end of the connection, or sent something wrong.
  void give_up(const std::string& why) {
    if (connectors_.size() == 1) wait_ = kLongestWait / 3;
    lost(why);
  }

  // Called when the connection has ended, or could not be made. Tries again later.
  void lost(const std::string& why) {
    if (const auto frames = std::exchange(frames_, nullptr)) frames->close();
    run_after(timer_, wait_, [this] {
      turns_.begin(turns_.current());
      attempt();
    });
    wait_ = std::min(wait_ * 2, kLongestWait);
    known_.is_live = false;
    known_.why = harmless(why);
    told_ = kLookAway;
    draw();
  }

  // Tells the rendezvous whose output is shown. Repeats it on each connection, and if it could not
  // be sent.
  void tell() {
    const std::string wish = view_.wish(known_.state);
    if (!known_.is_live || wish == told_ || !frames_->has_sent_all()) return;
    frames_->send(wish);
    told_ = wish;
  }

  // A slow terminal gets only the newest picture, and none in between.
  void draw() {
    if (!has_event(STDOUT_FILENO, POLLOUT)) {
      if (std::exchange(is_waiting_, true)) return;
      return out_.async_wait(stream_descriptor::wait_write,
                             [this](boost::system::error_code error) {
                               is_waiting_ = false;
                               if (!error) draw();
                             });
    }
    if (text(known_.tail, "run_id") != view_.output_of ||
        whole(known_.tail, "rank") != view_.rank) {
      known_.tail = nullptr;
    }
    terminal_->show(screen_picture(known_, view_, COLS, LINES));
  }

  const SessionOptions& options_;
  boost::asio::io_context io_{1};
  Known known_;
  View view_;
  std::string told_ = kLookAway;  // what the rendezvous was told on this connection
  int exit_code_ = 0;
  std::optional<Error> refused_;  // an error before the first connection that won't pass
  boost::asio::signal_set signals_{io_};
  stream_descriptor in_{io_, opened_again(STDIN_FILENO, O_RDONLY)};
  stream_descriptor out_{io_, opened_again(STDOUT_FILENO, O_WRONLY)};
  bool is_waiting_ = false;  // until the terminal takes output again
  std::vector<std::unique_ptr<LinkConnector>> connectors_;
  membership::EndpointTurns turns_;
  boost::asio::steady_timer timer_{io_};  // until the next attempt, or the limit of silence
  std::shared_ptr<FrameStream> frames_;   // also owned by its operations
  std::chrono::milliseconds wait_ = kFirstWait;
  bool was_there_ = false;
  std::optional<Terminal> terminal_;  // set by run()
};

}  // namespace

int run_session(const SessionOptions& options) { return Session(options).run(); }

}  // namespace ddprun::top
