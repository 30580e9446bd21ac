// SPDX-License-Identifier: Apache-2.0
#include "ctl/top/terminal.h"

#include <curses.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <utility>

#include "common/error.h"
#include "common/log.h"
#include "ctl/top/terminal_kind.h"

namespace ddprun::top {
namespace {

constexpr std::array kEndings = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr std::array kCrashes = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

// For signal handlers, which may not call ncurses.
termios g_shell_modes;
std::string g_leave;  // bytes that give the shell its screen
volatile std::sig_atomic_t g_is_leaving = 0;

void after_crash(int signal) {
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, g_leave.data(), g_leave.size());
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_shell_modes);
  ::raise(signal);  // by default now: SA_RESETHAND
}

// The rest of what ncurses writes goes nowhere where the program is to end.
void while_stuck(int) {
  sigset_t pending;
  ::sigpending(&pending);
  const bool is_told = std::any_of(kEndings.begin(), kEndings.end(), [&pending](int ending) {
    return ::sigismember(&pending, ending) == 1;
  });
  if (is_told || g_is_leaving != 0) ::dup2(::open("/dev/null", O_WRONLY), STDOUT_FILENO);
}

void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, &action, nullptr);
}

// ncurses writes until the terminal has taken all of it. While one of these exists, a signal that
// ends the program does so also where the terminal takes nothing. SIGTTOU doesn't stop it amid its
// farewell.
class Writing {
 public:
  explicit Writing(bool is_farewell) {
    sigset_t held;
    ::sigemptyset(&held);
    for (const int each : kEndings) ::sigaddset(&held, each);
    if (is_farewell) ::sigaddset(&held, SIGTTOU);
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
    set_timer(500'000);
  }
  ~Writing() {
    set_timer(0);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Writing(const Writing&) = delete;
  Writing& operator=(const Writing&) = delete;

 private:
  static void set_timer(suseconds_t microseconds) {
    const itimerval each{{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &each, nullptr);
  }
  sigset_t before_;
};

int opened_again(int fd, int mode) {
  for (const std::string& path : {concat("/proc/self/fd/", fd), std::string("/dev/tty")}) {
    const int own = ::open(path.c_str(), mode | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (own >= 0) return own;
  }
  throw_system_error("can't use the terminal", errno);
}

int attributes_of(char style, bool has_color) {
  struct Attributes {
    char style;
    int without_color, color;
  };
  constexpr std::array kAll = {
      Attributes{kBold, A_BOLD, 0},        Attributes{kDim, A_DIM, 0},
      Attributes{kGood, 0, COLOR_GREEN},   Attributes{kInfo, 0, COLOR_CYAN},
      Attributes{kBad, A_BOLD, COLOR_RED}, Attributes{kWarn, A_BOLD, COLOR_YELLOW},
      Attributes{kChosen, A_REVERSE, 0},   Attributes{kTitle, A_BOLD | A_UNDERLINE, 0}};
  for (const Attributes& each : kAll) {
    if (each.style != style) continue;
    return each.without_color | (has_color ? COLOR_PAIR(each.color) : 0);
  }
  return A_NORMAL;
}

}  // namespace

Terminal::Terminal(boost::asio::io_context& io, const Look& look, Handlers handlers)
    : look_(look),
      handlers_(std::move(handlers)),
      in_(io, opened_again(STDIN_FILENO, O_RDONLY)),
      out_(io, opened_again(STDOUT_FILENO, O_WRONLY)) {
  if (::tcgetattr(STDIN_FILENO, &g_shell_modes) != 0) {
    throw_system_error("can't use the terminal", errno);
  }
  // Nearly all terminals understand an xterm's sequences; this one's kind may not be described
  // here. A newterm() that fails would keep its memory.
  if (::newterm(is_terminal_described() ? nullptr : "xterm", stdout, stdin) == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "no terminals are described here (terminfo): --once prints a picture");
  }
  for (const char* name : {"sgr0", "rmkx", "cnorm", "rmcup"}) {
    const char* bytes = ::tigetstr(name);
    if (bytes != nullptr && bytes != reinterpret_cast<char*>(-1)) g_leave += bytes;
  }
  for (const int crash : kCrashes) handle(crash, after_crash, SA_RESETHAND | SA_NODEFER);
  handle(SIGALRM, while_stuck, 0);
  ::cbreak();
  ::noecho();
  termios now{};
  ::tcgetattr(STDIN_FILENO, &now);
  now.c_iflag &= ~static_cast<tcflag_t>(IXON);  // ^S must not freeze it
  ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
  ::def_prog_mode();
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::set_escdelay(25);
  ::curs_set(0);
  if (look_.has_color && ::has_colors()) {
    ::start_color();
    ::use_default_colors();
    for (const short color : {COLOR_RED, COLOR_GREEN, COLOR_YELLOW, COLOR_CYAN}) {
      ::init_pair(color, color, -1);
    }
  }
  read_next();
}

Terminal::~Terminal() {
  g_is_leaving = 1;
  leave();
}

void Terminal::leave() {
  if (::isendwin()) return;
  const Writing writing(true);
  ::endwin();
  ::tcsetattr(STDIN_FILENO, TCSANOW, &g_shell_modes);  // also where stdout is the terminal no more
}

void Terminal::forget() {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
    ::resize_term(size.ws_row, size.ws_col);
  }
  ::clearok(stdscr, TRUE);
}

std::size_t Terminal::columns() const { return static_cast<std::size_t>(::getmaxx(stdscr)); }
std::size_t Terminal::rows() const { return static_cast<std::size_t>(::getmaxy(stdscr)); }

void Terminal::read_next() {
  in_.async_wait(Descriptor::wait_read, [this](boost::system::error_code error) {
    if (error == boost::asio::error::operation_aborted) return;
    pollfd now{STDIN_FILENO, POLLIN, 0};
    ::poll(&now, 1, 0);
    if (error || (now.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) return handlers_.gone();
    for (int key = ::getch(); key != ERR; key = ::getch()) handlers_.pressed(key);
    read_next();
  });
}

bool Terminal::is_busy() {
  pollfd now{STDOUT_FILENO, POLLOUT, 0};
  if (::poll(&now, 1, 0) != 0) return false;
  if (!std::exchange(is_waiting_, true)) {
    out_.async_wait(Descriptor::wait_write, [this](boost::system::error_code error) {
      is_waiting_ = false;
      if (!error) handlers_.drained();
    });
  }
  return true;
}

void Terminal::show(const Lines& lines) {
  if (::isendwin()) {  // the shell may have set other modes meanwhile
    ::def_shell_mode();
    ::tcgetattr(STDIN_FILENO, &g_shell_modes);
  }
  const Writing writing(false);
  ::erase();
  for (std::size_t row = 0; row < lines.size(); ++row) {
    const std::string line = look_.has_unicode ? lines[row] : in_ascii(lines[row]);
    const auto is_style = [](char byte) { return byte >= 0 && byte < ' '; };
    ::attrset(A_NORMAL);
    ::move(static_cast<int>(row), 0);
    for (auto at = line.begin(); at != line.end();) {
      const auto end = std::find_if(at, line.end(), is_style);
      ::addnstr(&*at, static_cast<int>(end - at));
      if (end != line.end()) ::attrset(attributes_of(*end, look_.has_color));
      at = end == line.end() ? end : end + 1;
    }
  }
  ::refresh();
}

}  // namespace ddprun::top
