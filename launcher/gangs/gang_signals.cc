// SPDX-License-Identifier: Apache-2.0
#include "launcher/gangs/gang_signals.h"

#include <signal.h>

#include <utility>

#include "common/signal_names.h"

namespace ddprun::launcher {
namespace {

volatile sig_atomic_t num_signals = 0, first_signal = 0, outlived_signal = 0;

void count_signal(int number) {
  if (num_signals == 0) first_signal = number;
  num_signals = num_signals + 1;
}

void outlive_signal(int number) { outlived_signal = number; }

void handle(int number, void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  if (!is_ignored(number)) ::sigaction(number, &action, nullptr);
}

}  // namespace

void take_gang_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) handle(number, count_signal);
  for (const int number : {SIGUSR1, SIGUSR2}) handle(number, outlive_signal);
}

int num_ending_signals() { return num_signals; }
int first_ending_signal() { return first_signal; }

std::optional<int> take_outlived_signal() {
  const int number = outlived_signal;
  outlived_signal = 0;
  return number == 0 ? std::nullopt : std::optional<int>(number);
}

}  // namespace ddprun::launcher
