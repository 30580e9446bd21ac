// SPDX-License-Identifier: Apache-2.0
// How the worker that failed first is told: the last thing on screen, and whether memory ran out.
// Also the file that ddprun leaves for the one who started it.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "common/environment.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

struct ReportContext {
  std::string program;  // as typed
  int max_restarts = 0;
  bool is_alone = false;  // the job has one worker
  int node_rank = -1;     // this node's; −1: it never had one
  bool local = false;     // decided here, not by the rendezvous
  std::string job_id = {};
};

// Several lines, the last one with the exit code. Empty for a job that ended with 0. If this node
// was a spare of it to its end, one line says so.
std::string failure_report(const membership::JobEnd& verdict, const ReportContext& context);

// "exit code 3", "killed by SIGSEGV (signal 11)".
std::string how_it_ended(const membership::WorkerFailure& failure);

// Why memory ran out, as the worker's node knows it from the kernel's OOM killer. Else "ran out: "
// and the last exception in its error file or last lines. The exception must be one of
// those for too little memory (torch.OutOfMemoryError, MemoryError, std::bad_alloc, …). Empty:
// nothing says so.
std::string out_of_memory(const membership::WorkerFailure& failure);

// Fields of the worker's error file beyond the usual ones: an ErrorHandler of the program's own may
// add some, anywhere. Empty if the failure came without a JSON object. Pure.
boost::json::object further_fields(const membership::WorkerFailure& failure);

// {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}, "errorCode": …}}
// and the further fields; empty where the worker left no traceback: torchrun then writes nothing,
// either. Pure.
std::string error_file_text(const membership::WorkerFailure& failure);

// Writes how a job failed to the file that TORCHELASTIC_ERROR_FILE of `environment` names. The text
// is error_file_text() of the worker at fault. If no worker is, it is the verdict's reason in the
// same shape. Writes nothing for exit code 0. Returns what went wrong; empty: nothing.
std::string leave_error_file(const Environment& environment, const membership::JobEnd& verdict);

}  // namespace ddprun::launcher
