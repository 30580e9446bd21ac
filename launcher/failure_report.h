// SPDX-License-Identifier: Apache-2.0
// Reports how the first failed worker ended: the last text on screen, and whether memory ran out.
// Also writes the error file for the process that started ddprun.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "common/environment.h"
#include "rendezvous/messages/messages.h"

namespace ddprun::launcher {

struct ReportContext {
  std::string program;  // as typed
  int max_restarts = 0;
  bool is_alone = false;  // the job has only one worker
  int node_rank = -1;     // this node's; −1: it never had one
  bool local = false;     // decided here, not by the rendezvous
  std::string job_id = {};
};

// Returns several lines, the last with the exit code. Empty if the job ended with 0. But if this
// node was a spare to the end, one line says so.
std::string failure_report(const membership::JobEnd& verdict, const ReportContext& context);

// "exit code 3", "killed by SIGSEGV (signal 11)".
std::string how_it_ended(const membership::WorkerFailure& failure);

// Says why memory ran out, as the node's kernel told it (OOM killer). Else returns "ran out: " and
// the last exception of the error file, or without one, of the last lines. The exception must be
// one of too little memory (torch.OutOfMemoryError, MemoryError, std::bad_alloc, …). Empty: nothing
// says so.
std::string out_of_memory(const membership::WorkerFailure& failure);

// Returns additional fields of the worker's error file: a program's own ErrorHandler may add some
// anywhere. Empty if the failure has no JSON object. Pure.
boost::json::object further_fields(const membership::WorkerFailure& failure);

// Returns {"message": {"message": …, "extraInfo": {"py_callstack": …, "timestamp": …}, "errorCode":
// …}} and the further fields. Empty if the worker left no traceback: then torchrun writes no file
// either. Pure.
std::string error_file_text(const membership::WorkerFailure& failure);

// Writes how a job failed to the file that TORCHELASTIC_ERROR_FILE of `environment` names:
// error_file_text() of the failed worker. If no worker failed, it is the verdict's reason in the
// same form. Writes nothing for exit code 0. Returns the problem; empty: none.
std::string leave_error_file(const Environment& environment, const membership::JobEnd& verdict);

}  // namespace ddprun::launcher
