// SPDX-License-Identifier: Apache-2.0
// What a command says on stdout, and on stderr where that can't be written.
#pragma once

#include <string>

namespace ddprun::ctl {

// `errno` of a failed write to stdout, as a line on stderr, with what else the user has to know; a
// reader that left ("| head") has had enough, and is told nothing but that.
void tell_lost_output(int error, const std::string& news = {});

// Writes all of it. Returns `code`, or, after a line on stderr, that of ExitCode::kOutputLost.
int print_or_tell(const std::string& text, int code = 0, const std::string& news = {});

}  // namespace ddprun::ctl
