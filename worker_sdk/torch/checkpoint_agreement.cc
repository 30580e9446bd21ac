// SPDX-License-Identifier: Apache-2.0
#include "worker_sdk/torch/checkpoint_agreement.h"

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <vector>

#include "common/error.h"
#include "common/log.h"
#include "worker_sdk/torch/tensor_exchange.h"

namespace ddprun::torch_adapter {
namespace {

// An outcome as text: kResult and the result; or kError, the code as a character behind '0' (none
// is a zero byte), and the message.
constexpr char kResult = 'R', kError = 'E';
constexpr char kFirstCode = '0';
constexpr std::size_t kMostErrorBytes = 1024;

std::string encode(ErrorCode code, const std::string& what) {
  return concat(kError, static_cast<char>(kFirstCode + static_cast<int>(code)), what);
}

std::string outcome_of(const std::function<std::string()>& act) {
  try {
    return kResult + act();
  } catch (const Error& error) {
    return encode(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    return encode(ErrorCode::kResourceExhausted, "out of memory for a checkpoint");
  } catch (const c10::Error& error) {  // its what() has a stack
    return encode(ErrorCode::kSystem, concat("a checkpoint: ", error.what_without_backtrace()));
  } catch (const std::exception& error) {  // the file system's
    return encode(ErrorCode::kSystem, concat("a checkpoint: ", error.what()));
  }
}

// The result, or the error thrown.
std::string settle(const std::string& outcome) {
  if (outcome.front() == kResult) return outcome.substr(1);
  throw Error(static_cast<ErrorCode>(outcome.at(1) - kFirstCode), outcome.substr(2));
}

}  // namespace

std::string on_rank_zero(Communicator& communicator, c10::Device device,
                         const std::function<std::string()>& act) {
  std::string outcome;
  if (communicator.rank() == 0) outcome = outcome_of(act);
  if (communicator.size() > 1) broadcast_bytes(outcome, 0, communicator, device);
  return settle(outcome);
}

void on_every_rank(Communicator& communicator, c10::Device device,
                   const std::function<void()>& act) {
  const std::string mine = outcome_of([&] {
    act();
    return std::string();
  });
  std::vector<std::string> all{mine};
  if (communicator.size() > 1) all = gather_texts(mine, kMostErrorBytes, communicator, device);
  for (const std::string& each : all) settle(each);
}

}  // namespace ddprun::torch_adapter
