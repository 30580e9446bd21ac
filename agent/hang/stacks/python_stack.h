// SPDX-License-Identifier: Apache-2.0
// The Python stack of a process, by py-spy where that is in PATH.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// Whether the program of `pid` is called python….
bool is_python(pid_t pid);

// Of the main thread, innermost first: "load (train.py:12)"; at most `max_frames`. Empty: there is
// no py-spy, or it found nothing. Waits until py-spy ends; it dies with this process.
std::vector<std::string> python_stack(pid_t pid, std::size_t max_frames);

// What `py-spy dump` prints.
std::vector<std::string> parse_py_spy(std::string_view text, std::size_t max_frames);

}  // namespace ddprun::agent
