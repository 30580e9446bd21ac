// SPDX-License-Identifier: Apache-2.0
// A communication hook of your own: signSGD with majority vote (Bernstein et al. 2018). Only the
// signs of gradients are sent, one byte each, and the ranks, up to 127, vote.
//   ddprun --standalone --nproc_per_node=2 comm_hook
#include <torch/torch.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <vector>

#include <ddprun/core/session.h>
#include <ddprun/ddp/distributed_sampler.h>
#include <ddprun/torch/distributed_data_parallel.h>

using namespace ddprun;

class SignHook : public CommHook {
 public:
  HookStep run(const GradBucket& bucket, int step, Communicator& communicator) override {
    auto* const gradients = static_cast<float*>(bucket.view.data);
    std::vector<std::int8_t>& votes = votes_[bucket.index];  // lives until they are counted
    votes.resize(bucket.view.count);
    const auto sign = [](auto value) { return (value > 0) - (value < 0); };
    if (step == 0) {
      std::transform(gradients, gradients + votes.size(), votes.begin(), sign);
      const TensorView view{.data = votes.data(), .count = votes.size(), .dtype = DType::kInt8};
      return {communicator.all_reduce(view, ReduceOp::kSum, {.async = true}), votes.size()};
    }
    std::transform(votes.begin(), votes.end(), gradients, sign);
    return {};
  }

 private:
  std::map<std::size_t, std::vector<std::int8_t>> votes_;  // by bucket
};

int main() {
  const auto session = Session::from_env();
  const auto communicator = session->make_communicator(BackendChoice::kHost);
  torch::manual_seed(1);  // the same points on every rank
  const torch::Tensor x = torch::rand({1000, 2}) - 0.5;
  const torch::Tensor y = 3 * x.narrow(1, 0, 1) - 2 * x.narrow(1, 1, 1) + 1;

  torch::nn::Linear net(2, 1);
  DistributedDataParallel ddp(*net, *communicator, {.comm_hook = std::make_shared<SignHook>()});
  torch::optim::SGD optimizer(net->parameters(), 0.01);
  const DistributedSampler sampler(1000, session->world_size(), session->rank());
  for (std::uint64_t epoch = 0; epoch < 20; ++epoch) {
    for (const torch::Tensor& batch : torch::tensor(sampler.indices(epoch)).split(10)) {
      ddp.zero_grad();
      torch::mse_loss(ddp(x.index({batch})), y.index({batch})).backward();
      optimizer.step();
    }
  }
  const GradientTraffic& traffic = ddp.traffic();
  std::cout << "rank " << session->rank() << ": weights " << net->weight[0][0].item<float>() << " "
            << net->weight[0][1].item<float>() << ", sent " << traffic.sent_bytes << " of "
            << traffic.uncompressed_bytes << " bytes" << std::endl;
}
