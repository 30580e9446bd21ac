// SPDX-License-Identifier: Apache-2.0
// The smallest data-parallel training loop: fits a line to points, of which each rank has a share.
//   ddprun --standalone --nproc_per_node=2 minimal_ddp [EPOCHS]
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>

#include <ddprun/core/session.h>
#include <ddprun/ddp/distributed_sampler.h>
#include <ddprun/torch/distributed_data_parallel.h>

int main(int argc, char** argv) {
  const std::uint64_t num_epochs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 20;
  const auto session = ddprun::Session::from_env();
  const auto communicator = session->make_communicator(ddprun::BackendChoice::kHost);
  torch::manual_seed(1);  // the same points on every rank
  const torch::Tensor x = torch::rand({1000, 2}) - 0.5;
  const torch::Tensor y = 3 * x.narrow(1, 0, 1) - 2 * x.narrow(1, 1, 1) + 1;

  torch::nn::Linear net(2, 1);
  ddprun::DistributedDataParallel ddp(*net, *communicator);
  torch::optim::SGD optimizer(net->parameters(), 0.5);
  const ddprun::DistributedSampler sampler(1000, session->world_size(), session->rank());
  float loss_value = 0;
  for (std::uint64_t epoch = 0; epoch < num_epochs; ++epoch) {
    for (const torch::Tensor& batch : torch::tensor(sampler.indices(epoch)).split(10)) {
      ddp.zero_grad();
      const torch::Tensor loss = torch::mse_loss(ddp(x.index({batch})), y.index({batch}));
      loss.backward();
      optimizer.step();
      loss_value = loss.item<float>();
    }
  }
  std::cout << "rank " << session->rank() << " of " << session->world_size() << ": loss "
            << loss_value << ", weights " << net->weight[0][0].item<float>() << " "
            << net->weight[0][1].item<float>() << std::endl;
}
