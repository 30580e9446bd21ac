// SPDX-License-Identifier: Apache-2.0
#include "launcher/handled_signals.h"

#include <algorithm>
#include <array>

#include "common/signal_names.h"
#include "common/trimmed.h"

namespace ddprun::launcher {
namespace {

// They can't be caught, or not be survived by who catches them, or mean something else to ddprun.
constexpr std::array kUnusable = {SIGKILL, SIGSTOP, SIGCHLD, SIGPIPE, SIGSEGV,
                                  SIGBUS,  SIGFPE,  SIGILL,  SIGABRT, SIGXFSZ};

bool contains(const std::vector<int>& signals, int number) {
  return std::find(signals.begin(), signals.end(), number) != signals.end();
}

}  // namespace

std::string parse_handled_signals(std::string_view text, HandledSignals& handled) {
  HandledSignals result;
  result.text = text;
  result.numbers.clear();
  for (bool more = true; more;) {
    const std::size_t comma = text.find(',');
    const std::string_view name = trimmed(text.substr(0, comma));
    more = comma != std::string_view::npos;
    if (more) text.remove_prefix(comma + 1);
    const auto number = parse_signal(name);
    if (!number || std::find(kUnusable.begin(), kUnusable.end(), *number) != kUnusable.end()) {
      return "\"" + std::string(name) + "\" is no signal that can be handled";
    }
    if (!contains(result.numbers, *number)) result.numbers.push_back(*number);
  }
  handled = std::move(result);
  return {};
}

std::string settle_signals(bool handled_given, bool warnings_given, HandledSignals& handled,
                           PreemptionOptions& preemption) {
  for (const int number : std::vector<int>(handled.numbers)) {
    if (!contains(preemption.signals, number)) continue;
    if (handled_given && warnings_given) {
      return "--signals-to-handle: " + signal_name(number) +
             " is in --preemption-signals, too: it can't both stop the job and warn";
    }
    std::erase(handled_given ? preemption.signals : handled.numbers, number);
  }
  return {};
}

}  // namespace ddprun::launcher
